"""mxpeak.kernels.host"""
