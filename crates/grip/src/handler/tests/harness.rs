//! A scripted back end, a hub on an event loop of its own, and clients, for the tests of
//! `handler`.
//!
//! Everything runs on the loop; the test waits for it from its own thread, always with a deadline.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    AddressPrefix, Body, BodyStream, ConnectionAdopter, Fault, FrontEndInstructions, Handler,
    HandlerProgress, HeldConnectionCounter, HeldConnectionGuard, HeldFraming, ListenerInfo, Mount,
    RecordLayer, Reply, Request, RequestBody, Response, grip,
};
use penstock_http::{HeadLimits, ParseProgress, RequestHead, Status, parse_head};
use penstock_hub::{DrainPlan, Hub, HubTransfer, Namespace, Settings};
use penstock_runtime::loops::EventLoops;
use penstock_runtime::{Stream, clock};
use penstock_sys::fd_packets;
use penstock_sys::net::PeerAddress;
use penstock_tokens::Signer;

use crate::{GripHandler, GripOptions, GripStreams, WebSocketSupport};

/// Nothing that works takes so long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// What the back end does with one request.
pub(crate) type ScriptedReply = Result<Reply, Fault>;

/// Records what it is asked and answers by its script.
#[derive(Debug)]
pub(crate) struct Backend {
    script: Mutex<VecDeque<ScriptedReply>>,
    asked: SyncSender<Request>,
}

impl Handler for Backend {
    fn handle(&self, request: Request) -> HandlerProgress {
        let act = self.script.lock().unwrap().pop_front();
        let act = act.unwrap_or_else(|| Ok(backend_response(404, &[], "no script").into()));
        let passed = match act {
            Ok(Reply::Pass(_)) => {
                return HandlerProgress::Ready(Ok(Reply::Pass(Box::new(request))));
            }
            act => act,
        };
        // Half of the answers come at once.
        let is_now = request.head.target().len().is_multiple_of(2);
        self.asked.try_send(request).unwrap();
        match is_now {
            true => HandlerProgress::Ready(passed),
            false => HandlerProgress::Pending(Box::pin(async move { passed })),
        }
    }
}

/// A hub, a back end, and what stands in front of it.
pub(crate) struct GripHarness {
    loops: Option<EventLoops>,
    pub(crate) hub: Hub,
    pub(crate) grip: Arc<GripHandler>,
    /// Lives as long as the hub.
    _streams: Arc<GripStreams>,
    backend: Arc<Backend>,
    last_request: Receiver<Request>,
}

/// The names of its channels are their keys, and one other origin is let in.
fn setup(
    hub: Hub,
    inner: Arc<Backend>,
    signer: Option<Signer>,
    sockets: WebSocketSupport,
) -> GripOptions {
    let signer = signer.map(Arc::new);
    GripOptions {
        name: "app:test".to_owned(),
        hub,
        backend: inner,
        namespace: Namespace::default(),
        allowed_origins: vec!["https://friend.test".to_owned()],
        front_signer: signer.clone(),
        signer,
        websocket_support: sockets,
        trusted_proxies: Arc::default(),
    }
}

impl GripHarness {
    pub(crate) fn new(script: impl IntoIterator<Item = ScriptedReply>) -> Self {
        Self::with(Settings::default(), None, script)
    }

    pub(crate) fn with(
        settings: Settings,
        signer: Option<Signer>,
        script: impl IntoIterator<Item = ScriptedReply>,
    ) -> Self {
        Self::build(settings, script, |hub, inner| {
            GripHandler::new(setup(hub, inner, signer, WebSocketSupport::Native))
        })
    }

    /// For a back end that has its WebSockets as requests.
    pub(crate) fn with_websockets(script: impl IntoIterator<Item = ScriptedReply>) -> Self {
        Self::with_websockets_and_settings(Settings::default(), None, script)
    }

    /// For one that may take its clients' connections over instead.
    pub(crate) fn with_websockets_unless_hijacked(
        script: impl IntoIterator<Item = ScriptedReply>,
    ) -> Self {
        Self::build(Settings::default(), script, |hub, inner| {
            GripHandler::new(setup(hub, inner, None, WebSocketSupport::MayHijack))
        })
    }

    pub(crate) fn with_websockets_and_settings(
        settings: Settings,
        signer: Option<Signer>,
        script: impl IntoIterator<Item = ScriptedReply>,
    ) -> Self {
        Self::build(settings, script, |hub, inner| {
            GripHandler::new(setup(hub, inner, signer, WebSocketSupport::RequestsOnly))
        })
    }

    /// For a back end with a namespace of its own.
    pub(crate) fn in_namespace(
        name: &str,
        script: impl IntoIterator<Item = ScriptedReply>,
    ) -> Self {
        let namespace = Namespace::new(name);
        Self::build(Settings::default(), script, |hub, inner| {
            GripHandler::new(GripOptions {
                namespace,
                ..setup(hub, inner, None, WebSocketSupport::RequestsOnly)
            })
        })
    }

    /// For another back end.
    pub(crate) fn with_name(name: &str) -> Self {
        Self::build(Settings::default(), [], |hub, inner| {
            GripHandler::new(GripOptions {
                name: name.to_owned(),
                ..setup(hub, inner, None, WebSocketSupport::Native)
            })
        })
    }

    fn build(
        settings: Settings,
        script: impl IntoIterator<Item = ScriptedReply>,
        make: impl FnOnce(Hub, Arc<Backend>) -> GripHandler,
    ) -> Self {
        let loops = EventLoops::start(1).unwrap();
        let hub = Hub::start(settings, loops.handles()).unwrap();
        let (sender, asked) = sync_channel(100);
        let backend = Arc::new(Backend {
            script: Mutex::new(script.into_iter().collect()),
            asked: sender,
        });
        let grip = make(hub.clone(), Arc::clone(&backend));
        let streams = Arc::new(GripStreams::new(loops.handles()));
        streams.add_handler(&grip);
        let participant = Arc::downgrade(&streams);
        hub.add_transfer_participant(participant);
        Self {
            loops: Some(loops),
            hub,
            grip: Arc::new(grip),
            _streams: streams,
            backend,
            last_request: asked,
        }
    }

    /// Adds scripted replies of the back end.
    pub(crate) fn script(&self, act: ScriptedReply) {
        self.backend.script.lock().unwrap().push_back(act);
    }

    /// The next request that the back end got.
    pub(crate) fn next_backend_request(&self) -> Request {
        self.last_request
            .recv_timeout(TEST_TIMEOUT)
            .expect("the back end is asked")
    }

    /// Whether the back end got no other request.
    pub(crate) fn has_no_more_requests(&self) -> bool {
        self.last_request.try_recv().is_err()
    }

    /// Starts a request on the loop.
    pub(crate) fn begin(&self, request: Request) -> Receiver<ScriptedReply> {
        let grip = Arc::clone(&self.grip);
        self.begin_request_with(grip, request)
    }

    /// Starts a request with another handler.
    pub(crate) fn begin_request_with(
        &self,
        handler: Arc<dyn Handler>,
        request: Request,
    ) -> Receiver<ScriptedReply> {
        let (sender, receiver) = sync_channel(1);
        self.spawn(async move {
            let answered = done(handler.handle(request)).await;
            // A test that has failed does not wait for it.
            let _ = sender.send(answered);
        });
        receiver
    }

    pub(crate) fn request(&self, request: Request) -> ScriptedReply {
        await_backend_reply(&self.begin(request))
    }

    pub(crate) fn response(&self, request: Request) -> Response {
        response(self.request(request))
    }

    pub(crate) fn fault(&self, request: Request) -> Fault {
        self.request(request).expect_err("a fault")
    }

    /// What edge does with a response that is held: gives it a client.
    pub(crate) fn hold(&self, response: Response) -> HarnessClient {
        let Body::Hold(hold) = response.body else {
            panic!("a hold, not {response:?}");
        };
        let (ours, theirs) = penstock_sys::net::worker_socket_pair().unwrap();
        self.spawn(async move {
            let place = HeldConnectionGuard::new(Arc::new(NoopConnectionCounter));
            hold.hold(ours.into(), 0, HeldFraming::UntilClose, place);
        });
        HarnessClient::new(theirs)
    }

    /// What edge does with a connection that is taken over.
    pub(crate) fn take_over(&self, response: Response) -> HarnessClient {
        let Body::Takeover(takeover) = response.body else {
            panic!("a takeover, not {response:?}");
        };
        let (ours, theirs) = penstock_sys::net::worker_socket_pair().unwrap();
        self.spawn(async move {
            let client = Arc::new(Stream::new(ours).unwrap());
            takeover.take_over(client, Vec::new()).await;
        });
        HarnessClient::new(theirs)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let loops = self.loops.as_ref().unwrap();
        loops.handles()[0].spawn(task);
    }

    /// Has `next` take over the held streams, as the next process of an upgrade does.
    pub(crate) fn move_streams_to(&self, next: &Self) -> HubTransfer {
        let (ours, theirs) = fd_packets::packet_pair().unwrap();
        let hub = next.hub.clone();
        next.spawn(async move {
            let adopter = Arc::new(NoopConnectionCounter);
            let receiver = hub.receive_transfer(theirs, adopter).unwrap();
            receiver.run().await.unwrap();
        });
        let hub = self.hub.clone();
        let (sender, receiver) = sync_channel(1);
        self.spawn(async move {
            let mut transfer = hub.transfer_to(ours).unwrap();
            transfer.hand_over_channels().await.unwrap();
            transfer.hand_over_streams();
            transfer.wait_until_streams_moved().await;
            let _ = sender.send(transfer);
        });
        let moved = receiver.recv_timeout(TEST_TIMEOUT);
        moved.expect("the streams move")
    }

    /// Ends all held streams at once.
    pub(crate) fn drain(&self) {
        let hub = self.hub.clone();
        self.spawn(async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await });
    }

    /// Waits until so many wait at a channel.
    pub(crate) fn await_subscribers(&self, channel: &str, count: u64) {
        let deadline = clock::now() + TEST_TIMEOUT;
        while self.hub.subscriber_count(channel) != count {
            assert!(clock::now() < deadline, "{count} subscribers of {channel}");
            std::thread::yield_now();
        }
    }
}

impl Drop for GripHarness {
    fn drop(&mut self) {
        if let Some(loops) = self.loops.take() {
            loops.stop();
        }
    }
}

#[derive(Debug)]
struct NoopConnectionCounter;

impl HeldConnectionCounter for NoopConnectionCounter {
    fn release_held_connection(&self) {}
}

impl ConnectionAdopter for NoopConnectionCounter {
    fn adopt_held_connection(&self, _: Option<AddressPrefix>) -> HeldConnectionGuard {
        HeldConnectionGuard::new(Arc::new(Self))
    }

    fn restore_record_layer(&self, _: &[u8]) -> io::Result<Box<dyn RecordLayer>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The client of a held stream.
pub(crate) struct HarnessClient(UnixStream);

impl HarnessClient {
    fn new(socket: OwnedFd) -> Self {
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Fills that.
    pub(crate) fn read(&mut self, into: &mut [u8]) {
        self.0.read_exact(into).unwrap();
    }

    /// Reads exactly these.
    pub(crate) fn expect_bytes(&mut self, bytes: &[u8]) {
        let mut found = vec![0; bytes.len()];
        self.0.read_exact(&mut found).unwrap();
        assert_eq!(found, bytes);
    }

    /// Reads exactly this text.
    pub(crate) fn expect(&mut self, bytes: &str) {
        let mut found = vec![0; bytes.len()];
        self.0.read_exact(&mut found).unwrap();
        assert_eq!(String::from_utf8_lossy(&found), bytes);
    }

    /// Reads to the end.
    pub(crate) fn read_rest(self) -> String {
        String::from_utf8(self.read_rest_bytes()).unwrap()
    }

    pub(crate) fn read_rest_bytes(mut self) -> Vec<u8> {
        let mut found = Vec::new();
        self.0.read_to_end(&mut found).unwrap();
        found
    }

    /// Reads until that has come, and all that came with it.
    pub(crate) fn read_until(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut found = Vec::new();
        let mut piece = [0; 4096];
        while !found.windows(bytes.len()).any(|part| part == bytes) {
            let size = self.0.read(&mut piece).unwrap();
            assert!(size > 0, "the end came first");
            found.extend_from_slice(&piece[..size]);
        }
        found
    }
}

async fn done(handling: HandlerProgress) -> ScriptedReply {
    match handling {
        HandlerProgress::Ready(answered) => answered,
        HandlerProgress::Pending(work) => work.await,
    }
}

pub(crate) fn await_backend_reply(receiver: &Receiver<ScriptedReply>) -> ScriptedReply {
    receiver.recv_timeout(TEST_TIMEOUT).expect("an answer")
}

pub(crate) fn response(answered: ScriptedReply) -> Response {
    match answered {
        Ok(Reply::Response(response)) => *response,
        other => panic!("a response, not {other:?}"),
    }
}

pub(crate) fn body_text(body: Body) -> String {
    match body {
        Body::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Body::Empty => String::new(),
        other => panic!("bytes, not {other:?}"),
    }
}

/// An answer of the back end, marked as `apps` and `proxy` do.
pub(crate) fn backend_response(status: u16, lines: &[&str], body: &str) -> Response {
    let body = Body::Bytes(Bytes::copy_from_slice(body.as_bytes()));
    let mut response = Response::new(Status::new(status).unwrap(), body);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        response.fields.push(name, value.as_bytes()).unwrap();
        if grip::is_grip_field(name.as_bytes()) {
            response.instructions = FrontEndInstructions::ForThisServer;
        }
    }
    response
}

pub(crate) fn scripted_reply(lines: &[&str], body: &str) -> ScriptedReply {
    Ok(backend_response(200, lines, body).into())
}

pub(crate) fn head(method: &str, target: &str, lines: &[&str]) -> RequestHead {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: a.test\r\n");
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let Ok(ParseProgress::Complete((head, _))) =
        parse_head(text.as_bytes(), &HeadLimits::default())
    else {
        panic!("a valid head: {text:?}")
    };
    head
}

pub(crate) fn request(method: &str, target: &str, lines: &[&str]) -> Request {
    let head = head(method, target, lines);
    let listener = ListenerInfo {
        scheme: "http",
        address: None,
        name: String::new(),
        proxy_protocol: false,
        has_tls: false,
    };
    let arrival = RequestEnvironment {
        peer: PeerAddress::Tcp("192.0.2.7:50000".parse().unwrap()),
        listener: Arc::new(listener),
        client_state: Arc::default(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
        arrived_at: clock::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}

pub(crate) fn get(target: &str) -> Request {
    request("GET", target, &[])
}

/// All of a request's body.
pub(crate) fn body_of(request: Request) -> String {
    let RequestBody::Incoming(mut body) = request.body else {
        return String::new();
    };
    let (mut found, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    while let Poll::Ready(Ok(true)) = body.poll_fill(&mut cx, &mut found) {}
    assert!(body.length().is_some());
    String::from_utf8(found).unwrap()
}

/// A body in pieces.
pub(crate) struct ChunkedBody(pub(crate) Vec<&'static str>);

impl BodyStream for ChunkedBody {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        let piece = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(piece.map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}
