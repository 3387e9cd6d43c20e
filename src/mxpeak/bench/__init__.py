"""mxpeak.bench"""
