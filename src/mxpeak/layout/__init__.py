"""mxpeak.layout"""
