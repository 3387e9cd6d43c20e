"""mxpeak.cli"""
