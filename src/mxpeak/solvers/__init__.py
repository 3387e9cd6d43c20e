"""mxpeak.solvers"""
