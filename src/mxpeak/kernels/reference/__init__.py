"""mxpeak.kernels.reference"""
