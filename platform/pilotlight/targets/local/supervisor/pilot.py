"""Asks a pilot light to fork a predictor."""


class PilotLights:
    pass
