"""A bad and a good manifest for each Knative rule."""

from tests.platform.lint.lint_cases import Case, annotated, deployment, knative, pod, revision

A = "autoscaling.knative.dev"
HPA_CLASS = f"{A}/class: hpa.autoscaling.knative.dev\n"
GPU = "resources: {limits: {nvidia.com/gpu: 1}}"


SLOW_START = "    spec: {containers: [{startupProbe: {periodSeconds: 10, failureThreshold: 90}}]}\n"

CASES: dict[str, Case] = {
    "PL450": Case(
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  annotations:\n"
        f"    {A}/min-scale: '1'  # PL450\n",
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n"
        "  annotations: {serving.knative.dev/rollout-duration: 60s}\n" + annotated(f"{A}/min-scale: '1'"),
    ),
    "PL451": Case(annotated(f"{A}/minScale: '1'  # PL451"), annotated(f"{A}/min-scale: '1'")),
    "PL452": Case(annotated(f"{A}/scale-down-dely: 5m  # PL452"), annotated(f"{A}/scale-down-delay: 5m")),
    "PL453": Case(
        annotated(f"{HPA_CLASS}{A}/min-scale: '0'  # PL453") + annotated(HPA_CLASS.strip() + "  # PL453"),
        annotated(f"{HPA_CLASS}{A}/min-scale: '1'") + annotated(f"{A}/min-scale: '0'"),
    ),
    "PL454": Case(
        annotated(f"{A}/metric: cpu  # PL454") + annotated(f"{A}/class: kda.autoscaling.knative.dev  # PL454"),
        annotated(f"{HPA_CLASS}{A}/metric: cpu") + annotated(f"{A}/metric: rps")
        + annotated(f"{A}/class: mine.example.com"),
    ),
    "PL455": Case(
        annotated(
            f"{A}/target: '0'  # PL455\n{A}/target-utilization-percentage: '120'  # PL455\n"
            f"{A}/panic-threshold-percentage: '100'  # PL455\n{A}/min-scale: '1.5'  # PL455\n"
            f"{A}/target-burst-capacity: '-0.5'  # PL455\n{A}/max-scale: many  # PL455"
        ),
        annotated(f"{A}/target: '0.01'\n{A}/target-burst-capacity: '-1'\n{A}/max-scale: '0'"),
    ),
    "PL456": Case(
        annotated(f"{A}/window: 5s  # PL456\n{A}/scale-down-delay: 2h  # PL456")
        + annotated(f"{A}/window: '60'  # PL456\n{A}/scale-to-zero-pod-retention-period: 1d  # PL456")
        + annotated("serving.knative.dev/progress-deadline: 1.5s  # PL456"),
        annotated(f"{A}/window: 1m30s\n{A}/scale-to-zero-pod-retention-period: 1m5.5s\n{A}/scale-down-delay: '0'")
        + annotated("serving.knative.dev/progress-deadline: 1h"),
    ),
    "PL457": Case(
        annotated(f"{A}/activation-scale: '1'  # PL457")
        + annotated(f"{A}/activation-scale: '3'  # PL457\n{A}/max-scale: '2'"),
        annotated(f"{A}/activation-scale: '2'\n{A}/max-scale: '2'\n{A}/min-scale: '1'"),
    ),
    "PL458": Case(
        annotated(f"{A}/min-scale: '3'\n{A}/max-scale: '2'  # PL458"),
        annotated(f"{A}/min-scale: '3'\n{A}/max-scale: '0'"),
    ),
    "PL459": Case(
        annotated(f"{A}/target: '10'  # PL459") + "    spec: {containerConcurrency: 1}\n",
        annotated(f"{A}/target: '7'") + "    spec: {containerConcurrency: 10}\n"
        + annotated(f"{A}/target: '10'\n{A}/metric: rps") + "    spec: {containerConcurrency: 1}\n",
    ),
    "PL460": Case(knative("template:  # PL460\n  spec: {}\n"), annotated(f"{A}/max-scale: '4'")),
    "PL461": Case(annotated(f"{A}/initial-scale: '0'  # PL461"), annotated(f"{A}/initial-scale: '1'")),
    "PL462": Case(
        annotated("serving.knative.dev/progress-deadline: 800s  # PL462") + SLOW_START
        + annotated(f"{A}/window: 60s").replace("template:", "template:  # PL462") + SLOW_START,
        annotated("serving.knative.dev/progress-deadline: 900s") + SLOW_START,
    ),
    "PL463": Case(
        revision("readinessProbe:\n  periodSeconds: 5  # PL463\nstartupProbe:  # PL463\n  httpGet: {path: /}"),
        revision("readinessProbe: {httpGet: {path: /}}") + deployment(pod("startupProbe: {httpGet: {path: /}}")),
    ),
    "PL464": Case(
        knative("template:\n  spec:\n    timeoutSeconds: 900  # PL464\n"),
        knative("template: {spec: {timeoutSeconds: 600}}\n"),
    ),
    "PL465": Case(
        revision("ports:  # PL465\n- containerPort: 9090  # PL465\n- name: metrics  # PL465\n  containerPort: 8082"),
        revision("ports: [{name: h2c, containerPort: 8081}]"),
    ),
    "PL466": Case(
        revision("env:\n- name: PORT  # PL466\n  value: '1'"),
        revision("env: [{name: MY_PORT, value: '1'}]") + deployment(pod("env: [{name: PORT, value: '1'}]")),
    ),
    "PL467": Case(
        knative("template:\n  spec:\n    containers:\n    - name: queue-proxy  # PL467\n"),
        knative("template: {spec: {containers: [{name: proxy}]}}\n"),
    ),
    "PL468": Case(
        revision("readinessProbe:\n  failureThreshold: 3  # PL468\n  timeoutSeconds: 1  # PL468"),
        revision("readinessProbe: {periodSeconds: 5, failureThreshold: 3}"),
    ),
    "PL469": Case(
        knative("template:\n  spec:\n    containerConcurrency: 2000  # PL469\n"),
        knative("template: {spec: {containerConcurrency: 0}}\n"),
    ),
    "PL470": Case(
        knative(
            "template:\n  spec:\n    nodeSelector: {a: b}  # PL470\n    tolerations: [{key: a}]  # PL470\n"
            "    volumes:\n    - name: a\n      persistentVolumeClaim: {claimName: a, readOnly: true}  # PL470\n"
        ),
        knative("template: {spec: {volumes: [{name: a, emptyDir: {}}, {name: b, secret: {}}]}}\n"),
    ),
    "PL471": Case(
        knative("template:\n  spec:\n    terminationGracePeriodSeconds: 30  # PL471\n")
        + revision("lifecycle: {preStop: {}}  # PL471"),
        deployment("template: {spec: {terminationGracePeriodSeconds: 30}}\n") + revision("image: a"),
    ),
    "PL472": Case(revision(f"{GPU}  # PL472"), revision("resources: {limits: {cpu: 1}}")),
    "PL473": Case(
        knative("traffic:  # PL473\n- {revisionName: m-1, percent: 90}\n- {revisionName: m-2}\n"),
        knative("traffic: [{revisionName: m-1, percent: 90}, {revisionName: m-2, percent: 10}]\n") + knative("{}\n"),
    ),
    "PL474": Case(
        knative("traffic:\n- percent: 100\n  revisionName: m-00001  # PL474\n"),
        knative("template: {metadata: {name: m-v2}}\ntraffic: [{percent: 100, revisionName: m-v1}]\n")
        + knative("traffic: [{percent: 90, revisionName: m-v1}, {percent: 10, latestRevision: true}]\n"),
    ),
    "PL475": Case(
        knative("traffic:\n- tag: a\n- tag: a  # PL475\n"),
        knative("traffic: [{tag: a}, {tag: b}, {percent: 50}, {percent: 50}]\n"),
    ),
    "PL476": Case(
        knative("traffic:\n- tag: Canary  # PL476\n- tag: canary  # PL476\n", "m" * 60),
        knative("traffic: [{tag: canary}]\n", "m" * 56),
    ),
    "PL477": Case(
        knative("template:\n  metadata:\n    name: v2  # PL477\n"),
        knative("template: {metadata: {name: m-v2}}\n"),
    ),
    "PL478": Case(
        knative("traffic:\n- revisionName: m-1\n  latestRevision: true  # PL478\n- configurationName: m  # PL478\n"),
        knative("traffic: [{revisionName: m-1, latestRevision: false}, {latestRevision: true}]\n"),
    ),
}  # fmt: skip
