"""The demonstration, with assertions: from `kubectl apply` to an answer, scaled and drained."""

from demo.cluster import Cluster
from demo.console import Console
from demo.story import answer, become_ready, scale_up_and_down


def test_model_answers_scales_and_drains(cluster: Cluster, url: str, example: str) -> None:
    console = Console()
    watch = become_ready(console, cluster, example)

    reply = answer(console, url)
    assert reply.complete, reply
    assert "Paris" in reply.text

    streams = scale_up_and_down(console, cluster, url, watch)
    dropped = [stream for stream in streams if not stream.complete]
    assert not dropped, dropped[:3]

    status = (cluster.get("llmdeployments.octavo.dev", "smollm2") or {})["status"]
    steps = [(entry["from"], entry["to"]) for entry in status["autoscaling"]["history"]]
    assert (1, 2) in steps, steps
    assert (2, 1) in steps, steps
    assert all(entry["inputs"] for entry in status["autoscaling"]["history"])
