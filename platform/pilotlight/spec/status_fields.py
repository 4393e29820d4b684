"""The status of an InferenceService as types: the words that OME and KServe both use for how far a service is.

`crds` makes the schema of them; what fills them in stands beside the cluster (`targets/kubernetes/kept`).
"""

from typing import Final

from pilotlight.spec.types import Field, ListOf, MapOf, OneOf, Record, Text, Truth, Whole

MODEL_STATES: Final = ("Pending", "Standby", "Loading", "Loaded", "FailedToLoad")
TRANSITIONS: Final = ("UpToDate", "InProgress", "BlockedByFailedLoad", "InvalidSpec")

_CONDITION: Final = Record(
    "condition",
    {
        "type": Field(Text(), "Ready, IngressReady, or a component's name with Ready behind it.", required=True),
        "status": Field(OneOf(("True", "False", "Unknown")), "Whether it holds.", required=True),
        "reason": Field(Text(), "One word for a program."),
        "message": Field(Text(), "One sentence for a person."),
        "lastTransitionTime": Field(Text(), "Since when."),
    },
)
_TRAFFIC: Final = Record(
    "traffic",
    {
        "revisionName": Field(Text(), "Which revision."),
        "percent": Field(Whole(0, 100), "Its share of the requests."),
        "latestRevision": Field(Truth(), "Is it the newest?"),
        "tag": Field(Text(), "Name under which it alone can be asked."),
        "url": Field(Text(), "Where it alone is asked."),
    },
)
_COMPONENT: Final = Record(
    "component",
    {
        "url": Field(Text(), "Where the component is asked."),
        "latestCreatedRevision": Field(Text(), "The newest revision."),
        "latestReadyRevision": Field(Text(), "The newest one that has answered."),
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
                    "totalCopies": Field(Whole(0), "Replicas that have it loaded."),
                    "failedCopies": Field(Whole(0), "Replicas that could not load it."),
                },
            )
        ),
        "lastFailureInfo": Field(
            Record(
                "lastFailureInfo",
                {
                    "reason": Field(Text(), "One word for a program."),
                    "message": Field(Text(), "What went wrong."),
                    "modelRevisionName": Field(Text(), "With which revision."),
                },
            )
        ),
    },
)

STATUS: Final = Record(
    "InferenceServiceStatus",
    {
        "url": Field(Text(), "Where the service is asked."),
        "address": Field(Record("address", {"url": Field(Text())}), "Where it is asked from within the cluster."),
        "deploymentMode": Field(Text(), "How it runs."),
        "observedGeneration": Field(Whole(0), "The generation that this tells about."),
        "conditions": Field(ListOf(_CONDITION), "What holds and what does not."),
        "components": Field(MapOf(_COMPONENT), "The same by component."),
        "modelStatus": Field(_MODEL, "How far the model is."),
    },
    "How far the service is. Written by the platform.",
)
