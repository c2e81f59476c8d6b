"""A client of db-controller for Python: calls that are repeated until their outcome is known, watches that go on, errors as classes.

It needs grpc and the modules that protoc generates from schema/schemapb. A Client is safe for concurrent use by threads.
"""
import random
import time
import uuid

import grpc
from dbcontroller.resource.v1 import resource_pb2 as pb
from dbcontroller.resource.v1 import resource_pb2_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

LARGEST = 4 << 20  # bytes of a request; a greater one never takes effect


class Error(Exception):
    """A call that failed. The outcome of a write that failed with no subclass of Refused is not known."""

    def __init__(self, code, text, reason="", metadata=None):
        super().__init__(text)
        self.code = code  # a grpc.StatusCode
        self.reason = reason  # such as BLOCKED, of the table in docs/guarantees.md; empty where the server gave none
        self.metadata = metadata or {}  # of google.rpc.ErrorInfo


class Refused(Error):
    """The call is refused, and never takes effect. Repeat it with a new request id, after its reason has gone."""


class Invalid(Refused):
    """The request is invalid; the text names the field."""


class NotFound(Refused):
    """There is no resource of this name, or it has another uid."""


class AlreadyExists(Refused):
    """A resource of this name exists."""


class Denied(Refused):
    """The caller has no right to do this."""


class Blocked(Refused):
    """A delete: others refer to the resource; the text names them."""


class Reset(Refused):
    """A watch or a list cannot go on from its token."""


REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT: Invalid,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: Denied,
    grpc.StatusCode.UNAUTHENTICATED: Denied,
    grpc.StatusCode.OUT_OF_RANGE: Reset,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.UNIMPLEMENTED: Refused,
}


class Client:
    """Calls one deployment: address is host:port, certs a folder with tls.crt, tls.key and ca.crt.

    Each call is repeated for at most `within` seconds.
    """

    def __init__(self, address, certs, within=60):
        self.within = within

        def read(name):
            with open(f"{certs}/{name}", "rb") as file:
                return file.read()

        credentials = grpc.ssl_channel_credentials(read("ca.crt"), read("tls.key"), read("tls.crt"))
        # A connection that a firewall has forgotten is noticed; the server allows a ping each 10 s.
        self.channel = grpc.secure_channel(address, credentials, [("grpc.keepalive_time_ms", 30_000)])
        self.stub = resource_pb2_grpc.ResourceServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def call(self, method, request):
        """Calls a method, and repeats the call until it is answered or refused.

        A request with a request id takes effect once, however often it is repeated. One is given to a request that lacks it.
        """
        if "request_id" in request.DESCRIPTOR.fields_by_name and not request.request_id:
            request.request_id = str(uuid.uuid4())
        if request.ByteSize() > LARGEST:
            raise Invalid(grpc.StatusCode.INVALID_ARGUMENT, f"the request has more than {LARGEST} bytes")
        pause, limit, end = 0.05, 10, time.monotonic() + self.within
        while True:
            try:
                return method(request, timeout=max(0.001, min(limit, end - time.monotonic())))
            except grpc.RpcError as failed:
                error = of(failed)
            if isinstance(error, Refused) or time.monotonic() + pause > end:
                raise error
            if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
                limit *= 2  # a large write may need more
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, 2)

    def get(self, name):
        return self.call(self.stub.GetResource, pb.GetResourceRequest(name=name))

    def put(self, name, body, labels=None, revision=0):
        """Creates a resource, or replaces its body and labels; only the one with this revision, if it is given."""
        resource = pb.Resource(name=name, labels=labels or {}, revision=revision)
        resource.body.SetInParent()  # an empty body is no missing one
        resource.body.update(body)
        return self.call(self.stub.PutResource, pb.PutResourceRequest(resource=resource))

    def delete(self, name, uid=""):
        """Deletes a resource. The answer says whether it is removed, or in DELETING."""
        return self.call(self.stub.DeleteResource, pb.DeleteResourceRequest(name=name, uid=uid))

    def list(self, kind="", filter=""):
        """Yields the resources of a kind, page by page."""
        request = pb.ListResourcesRequest(kind=kind, filter=filter, page_size=1000)
        while True:
            page = self.call(self.stub.ListResources, request)
            yield from page.resources
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def watch(self, kind="", filter="", token=""):
        """Yields (event, resource, token) for ever; the token, where there is one, continues behind this event.

        The events: "begin", a snapshot begins; "upsert"; "delete"; "end", the snapshot is complete, and each resource that it did
        not have is gone. The watch goes on from its last token after a failure, and begins again where that cannot be resumed.
        """
        pause = 0.05
        while True:
            if not token:
                yield "begin", None, ""
            request = pb.WatchResourcesRequest(kind=kind, filter=filter, resume_token=token, allow_batches=True)
            stream = self.stub.WatchResources(request)
            try:
                for message in stream:
                    pause = 0.05
                    for event, resource, at in events(message):
                        token = at or token
                        if event != "bookmark":
                            yield event, resource, at
            except grpc.RpcError as failed:
                error = of(failed)
                if isinstance(error, Reset):
                    token = ""
                elif isinstance(error, Refused):
                    raise error from None
            finally:
                stream.cancel()
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, 2)


def events(message):
    """The events of a message of a watch, of which the last one has its token."""
    kind = message.WhichOneof("event")
    if kind == "end_of_snapshot":
        return [("end", None, message.end_of_snapshot.resume_token)]
    if kind == "bookmark":
        return [("bookmark", None, message.bookmark.resume_token)]
    found = [message] if kind else message.changes
    out = [(c.WhichOneof("change" if c is not message else "event"), c) for c in found]
    last = len(out) - 1
    return [(e, getattr(c, e), message.resume_token if i == last else "") for i, (e, c) in enumerate(out)]


def of(failed):
    """The Error of a grpc.RpcError."""
    reason, metadata = "", {}
    for key, value in failed.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in _Status.FromString(value).details:
                if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                    info = _ErrorInfo.FromString(detail.value)
                    reason, metadata = info.reason, {m.key: m.value for m in info.metadata}
    kind = Blocked if reason == "BLOCKED" else REFUSED.get(failed.code(), Error)
    return kind(failed.code(), failed.details() or failed.code().name, reason, metadata)


def _messages(**fields):
    """Message classes of google.rpc, whose modules not every distribution has: name=[(field, number, type, repeated)]."""
    file = descriptor_pb2.FileDescriptorProto(name="dbcontroller_client.proto", package="dbcontroller_client", syntax="proto3")
    for name, numbered in fields.items():
        message = file.message_type.add(name=name)
        for field, number, of_type, repeated in numbered:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1, type=11 if isinstance(of_type, str) else of_type)
            if isinstance(of_type, str):
                added.type_name = ".dbcontroller_client." + of_type
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    get = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return [get(pool.FindMessageTypeByName("dbcontroller_client." + name)) for name in fields]


_TEXT, _BYTES, _NUMBER = 9, 12, 5
_Status, _, _ErrorInfo, _ = _messages(
    Status=[("code", 1, _NUMBER, False), ("message", 2, _TEXT, False), ("details", 3, "Any", True)],
    Any=[("type_url", 1, _TEXT, False), ("value", 2, _BYTES, False)],
    ErrorInfo=[("reason", 1, _TEXT, False), ("domain", 2, _TEXT, False), ("metadata", 3, "Entry", True)],
    Entry=[("key", 1, _TEXT, False), ("value", 2, _TEXT, False)],
)
