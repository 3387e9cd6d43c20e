"""mxpeak.kernels"""
