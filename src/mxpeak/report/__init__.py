"""mxpeak.report"""
