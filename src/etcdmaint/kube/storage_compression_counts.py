"""What the status of a StorageCompressionConfiguration says of the policy and of what is stored.

Pure: findings in, a patch out, None where all of it stands there already. By R138 nothing here may tell
how well a resource compresses: counts are given by resource and form, bytes only as sums over resources
with many values, never for few values of a form, and no key and no name of an object is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from etcdmaint.api.compression import AuditStatus, EncryptionCount, FormCount, ResourceCount
from etcdmaint.compression.audit import Audit
from etcdmaint.compression.census import OTHERS, Row
from etcdmaint.compression.contents import Content
from etcdmaint.compression.resources import shown
from etcdmaint.kube.verdict import Verdict

MOST_RESOURCES: Final = 100
MOST_KEYS: Final = 20
ENOUGH_VALUES: Final = 100
"""Below so many, a sum of bytes says too much of a single value."""

_LONGEST: Final = 253
_TOLD = 5


def summarize(audit: Audit, cluster_id: int, started: datetime, completed: datetime) -> AuditStatus:
    """What may be told of an audit that has come to its end."""
    rows = sorted(audit.census, key=lambda row: (-row.total.values, row.name))
    revisions = audit.progress.revisions or [0]
    return AuditStatus(
        cluster_id=cluster_id,
        started_at=started,
        completed_at=completed,
        first_revision=min(revisions),
        last_revision=max(revisions),
        consistent=audit.consistent,
        values=sum(row.total.values for row in rows),
        damaged=sum(row.damaged for row in rows),
        forms=_forms(rows),
        encryption=_encryption(rows),
        resources=_resources(rows),
    )


def damage(audit: AuditStatus | None) -> Verdict:
    """The condition Damaged: by resource and kind, without a key."""
    if audit is None:
        return Verdict(None, "NotAudited", "nothing has been counted yet")
    if not audit.damaged:
        return Verdict(
            False,
            "NoneFound",
            f"nothing is wrong with any of {audit.values or 0} values, as far as can be told undecrypted",
        )
    hurt = [row for row in audit.resources if row.damaged]
    told = ", ".join(f"{row.resource} {row.damaged}" for row in hurt[:_TOLD])
    more = f" and {len(hurt) - _TOLD} more" if len(hurt) > _TOLD else ""
    return Verdict(
        True,
        "DamagedValues",
        f"{audit.damaged} of {audit.values or 0} values cannot be read ({told}{more}): `etcdmaint "
        "storage scan` names their keys",
    )


def form_name(content: Content) -> str:
    """A form in one word: `protobuf`, `deflate`, `checksum`."""
    return content.name.lower()


def _forms(rows: Sequence[Row]) -> tuple[FormCount, ...]:
    values: Counter[Content] = Counter()
    # There is no sum over all forms: what is left out could be worked out from it.
    summed: Counter[Content] = Counter()
    sizes: Counter[Content] = Counter()
    for row in rows:
        many = row.total.values >= ENOUGH_VALUES
        for form, tally in row.forms.items():
            values[form.content] += tally.values
            if many:
                summed[form.content] += tally.values
                sizes[form.content] += tally.bytes
    return tuple(
        FormCount(
            form=form_name(content),
            values=count,
            bytes=sizes[content] if summed[content] >= ENOUGH_VALUES else None,
        )
        for content, count in sorted(values.items(), key=lambda item: (-item[1], item[0]))
    )


def _encryption(rows: Sequence[Row]) -> tuple[EncryptionCount, ...]:
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for form, tally in row.forms.items():
            if form.content is Content.ENCRYPTED:
                found[_text(form.provider), _text(form.key_name)] += tally.values
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    kept = Counter(dict(ordered[:MOST_KEYS]))
    if rest := sum(count for _, count in ordered[MOST_KEYS:]):
        kept[OTHERS, OTHERS] += rest
    return tuple(
        EncryptionCount(provider=provider, key_name=name, values=count)
        for (provider, name), count in kept.items()
    )


def _resources(rows: Sequence[Row]) -> tuple[ResourceCount, ...]:
    """The largest ones, and the rest as one: names that hostile keys make up cost no more."""
    told: dict[str, list[Row]] = {}
    for row in rows:
        # What has no slash at its end is a whole key: with a prefix that is too long, an object's name.
        name = _text(row.name) if row.located or row.name.endswith("/") else OTHERS
        if name not in told and len(told) >= MOST_RESOURCES:
            name = OTHERS
        told.setdefault(name, []).append(row)
    return tuple(_count(name, each) for name, each in told.items())


def _count(name: str, rows: Sequence[Row]) -> ResourceCount:
    forms: Counter[str] = Counter()
    for row in rows:
        for form, tally in row.forms.items():
            forms[form_name(form.content)] += tally.values
    return ResourceCount(
        resource=name,
        values=forms.total(),
        damaged=sum(row.damaged for row in rows) or None,
        forms=dict(sorted(forms.items())),
    )


def _text(text: str) -> str:
    """What was read from a key or a value, fit to be written: printable, and not long."""
    return shown(text.encode("utf-8", "surrogateescape"))[:_LONGEST]
