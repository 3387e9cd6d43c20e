"""mxpeak.dist"""
