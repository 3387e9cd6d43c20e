"""mxpeak.comm"""
