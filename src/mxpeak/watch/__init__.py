"""mxpeak.watch"""
