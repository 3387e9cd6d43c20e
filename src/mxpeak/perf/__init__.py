"""mxpeak.perf"""
