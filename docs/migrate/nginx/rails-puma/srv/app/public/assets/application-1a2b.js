js()
