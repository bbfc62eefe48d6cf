//! The gRPC side: calls become jobs for the worker, what it says becomes answers.

use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::Sender;
use futures_channel::{mpsc, oneshot};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Sink, SinkExt, StreamExt};
use grpcio::{
    GrpcSlice, Marshaller, MessageReader, Method as GrpcMethod, MethodType, RpcContext, RpcStatus, RpcStatusCode,
    Service, ServiceBuilder, WriteFlags,
};

use super::guard::{Guard, UNAUTHORIZED};
use super::state::refusal;
use super::worker::{Answer, Frame, Job};
use crate::rocketmq::wire::method::{Kind, Method};

pub(super) fn service(endpoint: usize, jobs: &Sender<Job>, guard: &Arc<Guard>) -> Service {
    let mut builder = ServiceBuilder::new();
    for method in Method::ALL {
        let (jobs, guard) = (jobs.clone(), Arc::clone(guard));
        match method.kind() {
            Kind::Unary => {
                builder =
                    builder.add_unary_handler(&grpc_method(method), move |context: RpcContext<'_>, body, sink| {
                        if let Some(text) = guard.refusal(&context) {
                            context.spawn(sink.success(refusal(UNAUTHORIZED, &text)).map(drop));
                            return;
                        }
                        let (reply, answer) = oneshot::channel();
                        let client = client_id(&context);
                        let _ = jobs.send(Job::Call { endpoint, method, client, body, reply });
                        let answered = answer.map(move |answer| match answer {
                            Ok(Answer::Body(body)) => sink.success(body).boxed(),
                            Ok(Answer::Grpc(code, text)) => sink.fail(status(code, text)).boxed(),
                            Err(_) => sink.fail(status(14, "the proxy is gone".to_owned())).boxed(),
                        });
                        context.spawn(answered.flatten().map(drop));
                    });
            }
            Kind::ServerStream => {
                builder = builder.add_server_streaming_handler(
                    &grpc_method(method),
                    move |context: RpcContext<'_>, body, sink| {
                        let (frames, stream) = mpsc::unbounded();
                        let client = client_id(&context);
                        // The frames end when there is nobody left to send more.
                        let _ = match guard.refusal(&context) {
                            Some(text) => frames.unbounded_send(Frame::Body(refusal(UNAUTHORIZED, &text))).is_ok(),
                            None => jobs.send(Job::Stream { endpoint, method, client, body, frames }).is_ok(),
                        };
                        context.spawn(pass_on(stream, sink, |sink, status| sink.fail(status).map(drop).boxed()));
                    },
                );
            }
            Kind::Duplex => {
                builder = builder.add_duplex_streaming_handler(
                    &grpc_method(method),
                    move |context: RpcContext<'_>, requests, sink| {
                        let (frames, stream) = mpsc::unbounded();
                        let client = client_id(&context);
                        if let Some(text) = guard.refusal(&context) {
                            let frame = Ok((refusal(UNAUTHORIZED, &text), WriteFlags::default()));
                            let refused = futures_util::stream::iter([frame]).forward(sink);
                            context.spawn(refused.map(move |_: Result<(), grpcio::Error>| drop(requests)));
                            return;
                        }
                        let (id, jobs) = (super::worker::next_stream(), jobs.clone());
                        let _ = jobs.send(Job::Opened { endpoint, client, stream: id, frames });
                        let told = jobs.clone();
                        // After an error there would be nothing but errors, for ever.
                        let read = requests
                            .take_while(|body| std::future::ready(body.is_ok()))
                            .map(move |body| {
                                let _ = body.map(|body| jobs.send(Job::Command { stream: id, body }));
                            })
                            .for_each(std::future::ready)
                            .map(move |()| drop(told.send(Job::Ended { stream: id })));
                        context.spawn(read);
                        context.spawn(pass_on(stream, sink, |sink, status| sink.fail(status).map(drop).boxed()));
                    },
                );
            }
        }
    }
    builder.build()
}

/// Frames one after another, until they end or one says how the call does.
fn pass_on<S>(
    mut frames: mpsc::UnboundedReceiver<Frame>,
    mut sink: S,
    fail: fn(S, RpcStatus) -> BoxFuture<'static, ()>,
) -> BoxFuture<'static, ()>
where
    S: Sink<(Bytes, WriteFlags)> + Unpin + Send + 'static,
    S::Error: Send,
{
    let passing = async move {
        while let Some(frame) = frames.next().await {
            match frame {
                Frame::Body(body) => {
                    if sink.send((body, WriteFlags::default())).await.is_err() {
                        return;
                    }
                }
                Frame::Failed(code, text) => return fail(sink, status(code, text)).await,
            }
        }
        let _ = sink.close().await;
    };
    passing.boxed()
}

fn client_id(context: &RpcContext<'_>) -> String {
    let header = context.request_headers().iter().find(|(name, _)| *name == "x-mq-client-id");
    header.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

fn status(code: i32, text: String) -> RpcStatus {
    RpcStatus::with_message(RpcStatusCode::from(code), text)
}

fn grpc_method(method: Method) -> GrpcMethod<Bytes, Bytes> {
    let ty = match method.kind() {
        Kind::Unary => MethodType::Unary,
        Kind::ServerStream => MethodType::ServerStreaming,
        Kind::Duplex => MethodType::Duplex,
    };
    let bytes = || Marshaller { ser: write_bytes, de: read_bytes };
    GrpcMethod { ty, name: method.path(), req_mar: bytes(), resp_mar: bytes() }
}

fn write_bytes(body: &Bytes, into: &mut GrpcSlice) -> grpcio::Result<()> {
    *into = GrpcSlice::from(&body[..]);
    Ok(())
}

fn read_bytes(mut reader: MessageReader) -> grpcio::Result<Bytes> {
    let mut body = Vec::with_capacity(reader.len());
    std::io::Read::read_to_end(&mut reader, &mut body).map_err(|error| grpcio::Error::Codec(Box::new(error)))?;
    Ok(Bytes::from(body))
}
