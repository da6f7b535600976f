"""Where a model's weights are, as a field of the API: the forms of a URI for each scheme, and of its revision."""

from __future__ import annotations

from octavo_operator.api.base import Rule

PATTERN = r"^(hf|s3|gs|oci|pvc)://[^\s]+$"
REVISION = r"^[A-Za-z0-9._/-]+$"


def uri_rules(path: str) -> tuple[Rule, ...]:
    """Rules of the block `path` with the fields `uri`, of any scheme, and `revision`."""
    return (
        *download_rules(path, "status.model.resolvedRevision"),
        claim_rule(path),
        Rule(
            rule="!has(self.revision) || self.uri.matches('^(hf|s3|gs)://')",
            message=f"{path}.revision is only allowed for hf://, s3:// and gs:// models; an oci:// reference contains "
            "its tag or digest",
        ),
    )


def claim_rule(path: str) -> Rule:
    """The rule for a folder or file of a volume."""
    return Rule(
        rule="!self.uri.startsWith('pvc://') || "
        "(self.uri.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?$') && !self.uri.contains('/..'))",
        message=f"{path}.uri with scheme pvc must have the form pvc://CLAIM/PATH, with PATH inside the volume",
    )


def download_rules(path: str, shown: str) -> tuple[Rule, ...]:
    """Those for the schemes of which files are downloaded. `shown`: the field of the status with the revision."""
    return (
        Rule(
            rule="!self.uri.startsWith('hf://') || self.uri.matches('^hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$')",
            message=f"{path}.uri with scheme hf must have the form hf://ORGANISATION/REPOSITORY; the revision goes "
            f"into {path}.revision",
        ),
        Rule(
            rule="!self.uri.matches('^(s3|gs)://') || "
            "(self.uri.matches('^(s3|gs)://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._=+-]+)*/?$') && "
            "!self.uri.matches('/[.][.]?(/|$)'))",
            message=f"{path}.uri with scheme s3 or gs must have the form s3://BUCKET/PREFIX or gs://BUCKET/PREFIX; "
            "PREFIX may contain letters, digits and . _ = + -",
        ),
        Rule(
            rule="!has(self.revision) || !self.uri.matches('^(s3|gs)://') || self.revision.matches('^[0-9a-f]{40}$')",
            message=f"{path}.revision of an s3:// or gs:// model must be 40 hexadecimal digits, as {shown} shows them",
        ),
    )
