"""Types of an InferenceService's status, in the terms of OME and KServe.

`crds` generates the schema from them; `targets/kubernetes/kept_status` writes the status.
"""

from typing import Final

from pilotlight.spec.types import Boolean, Field, Integer, ListOf, MapOf, OneOf, Record, String

MODEL_STATES: Final = ("Pending", "Standby", "Loading", "Loaded", "FailedToLoad")
TRANSITIONS: Final = ("UpToDate", "InProgress", "BlockedByFailedLoad", "InvalidSpec")

_CONDITION: Final = Record(
    "condition",
    {
        "type": Field(String(), "Ready, IngressReady, or a component's name with Ready behind it.", required=True),
        "status": Field(OneOf(("True", "False", "Unknown")), "Whether it holds.", required=True),
        "reason": Field(String(), "One word for a program."),
        "message": Field(String(), "One sentence for a person."),
        "lastTransitionTime": Field(String(), "Since when."),
    },
)
_TRAFFIC: Final = Record(
    "traffic",
    {
        "revisionName": Field(String(), "Which revision."),
        "percent": Field(Integer(0, 100), "Its share of the requests."),
        "latestRevision": Field(Boolean(), "Is it the newest?"),
        "tag": Field(String(), "Name under which it alone can be asked."),
        "url": Field(String(), "Where it alone is asked."),
    },
)
_COMPONENT: Final = Record(
    "component",
    {
        "url": Field(String(), "Where the component is asked."),
        "latestCreatedRevision": Field(String(), "The newest revision."),
        "latestReadyRevision": Field(String(), "The newest one that has answered."),
        "traffic": Field(ListOf(_TRAFFIC), "Who gets which share of the requests."),
    },
)
_MODEL: Final = Record(
    "modelStatus",
    {
        "transitionStatus": Field(OneOf(TRANSITIONS), "Is what was asked for what answers?"),
        "modelRevisionStates": Field(
            Record(
                "modelRevisionStates",
                {
                    "activeModelState": Field(OneOf(MODEL_STATES), "Of the model that answers."),
                    "targetModelState": Field(OneOf(MODEL_STATES), "Of the model that shall answer."),
                },
            )
        ),
        "modelCopies": Field(
            Record(
                "modelCopies",
                {
                    "totalCopies": Field(Integer(0), "Replicas that have it loaded."),
                    "failedCopies": Field(Integer(0), "Replicas that could not load it."),
                },
            )
        ),
        "lastFailureInfo": Field(
            Record(
                "lastFailureInfo",
                {
                    "reason": Field(String(), "One word for a program."),
                    "message": Field(String(), "What went wrong."),
                    "modelRevisionName": Field(String(), "With which revision."),
                },
            )
        ),
    },
)

STATUS: Final = Record(
    "InferenceServiceStatus",
    {
        "url": Field(String(), "Where the service is asked."),
        "address": Field(Record("address", {"url": Field(String())}), "Where it is asked from within the cluster."),
        "deploymentMode": Field(String(), "How it runs."),
        "observedGeneration": Field(Integer(0), "The generation that this tells about."),
        "conditions": Field(ListOf(_CONDITION), "What holds and what does not."),
        "components": Field(MapOf(_COMPONENT), "The same by component."),
        "modelStatus": Field(_MODEL, "How far the model is."),
    },
    "How far the service is. Written by the platform.",
)
