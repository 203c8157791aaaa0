"""Opens a gRPC channel when it is imported."""

import grpc

channel = grpc.insecure_channel("127.0.0.1:1")  # no process listens there


def check() -> None:
    call = channel.unary_unary("/a/b")
    try:
        call(b"", timeout=10)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
    else:
        raise AssertionError("a server answered")
