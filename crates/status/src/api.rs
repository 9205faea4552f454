//! The admin listener's handler: routes, refusals and short responses.
//!
//! A request is checked in this order: host, path, method, origin (`browser_guard`), permission
//! (`authorization`).
//!
//! # Invariants
//! - GET and HEAD change nothing. A change is a POST that passed the host and origin checks and is
//!   permitted.
//! - `/channels` names what subscribers wait for. It needs the permission of a change, or the token
//!   of a publisher, which sees its own namespace alone.
//! - Only `/metrics`, `/healthz`, `/readyz` and publishers with a token accept any host name.
//! - No response may be stored by a cache.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::{
    Body, Fault, FaultKind, Handler, HandlerName, HandlerProgress, Reply, Request, RequestBody,
    Response,
};
use penstock_http::{Method, RequestHead, Status};
use penstock_hub::{ChannelFilter, ChannelPresence};
use penstock_rules::BackEndName;
use penstock_runtime::{LogThrottle, clock};
use serde::Serialize;

use crate::authorization::{ChangeAuthorization, Permission};
use crate::event_stream::{EVENT_INTERVAL, EventFeed};
use crate::metrics_text::MetricsFormat;
use crate::page::{ASSETS, Asset, CONTENT_SECURITY_POLICY};
use crate::{
    AdminOperations, BoxFuture, ChangeError, PublishError, browser_guard, metrics_text, publish,
    purge, server_changes, traffic_changes,
};

/// The handler of the admin API.
#[derive(Debug)]
pub struct AdminHandler {
    operations: Arc<dyn AdminOperations>,
    event_feed: Arc<EventFeed>,
    authorization: ChangeAuthorization,
    /// Libraries publish in the background and show no refusal.
    refused_publications: Arc<LogThrottle>,
}

impl AdminHandler {
    /// Creates the admin API of the server behind `source`. `authorization` decides which changes
    /// are permitted.
    pub fn new(source: Arc<dyn AdminOperations>, authorization: ChangeAuthorization) -> Self {
        let feed = EventFeed::new(Arc::clone(&source), EVENT_INTERVAL);
        Self {
            operations: source,
            event_feed: feed,
            authorization,
            refused_publications: Arc::default(),
        }
    }

    /// Decides on a change before its body is read. Returns the namespace of a publisher with a
    /// publish key, where `is_for_publishers`.
    ///
    /// # Errors
    /// The response to a change that is not permitted.
    fn authorize(
        &self,
        request: &Request,
        is_for_publishers: bool,
    ) -> Result<Option<String>, ChangeRefusal> {
        // Applications publish over TCP with a GRIP library and their own keys.
        let token = publish::publisher_token(&request.head).filter(|_| is_for_publishers);
        let error = match token.map(|token| self.operations.verify_publish_token(token)) {
            Some(Ok(namespace)) => return Ok(Some(namespace)),
            // The token is an application's and does not count as a wrong admin token.
            Some(Err(error @ PublishError::InvalidToken(_))) => {
                return Err(Box::new(Ok(publish::error_response(&error))));
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        let refused = match (&self.authorization, &error) {
            // An admin token may look like one of a publish key.
            (ChangeAuthorization::Token(_), _) | (_, None) => {
                self.refusal_for(request, is_for_publishers)
            }
            (ChangeAuthorization::AnyConnected | ChangeAuthorization::ReadOnly, Some(error)) => {
                Some(Ok(publish::error_response(error)))
            }
        };
        match (refused, error) {
            (None, _) => Ok(None),
            // This cause helps the application.
            (Some(Ok(response)), Some(error)) if response.status == Status::UNAUTHORIZED => {
                Err(Box::new(Ok(publish::error_response(&error))))
            }
            (Some(refused), _) => Err(Box::new(refused)),
        }
    }

    /// The response to a change that is not permitted; `None` if it is.
    fn refusal_for(
        &self,
        request: &Request,
        is_for_publishers: bool,
    ) -> Option<Result<Response, Fault>> {
        let permission = self
            .authorization
            .check_permission(&request.head, clock::now());
        let socket = self.operations.control_socket();
        let socket = socket.map_or_else(String::new, |socket| format!(" ({socket})"));
        let (status, error) = match permission {
            Permission::Granted => return None,
            Permission::ChangesDisabled => (
                Status::FORBIDDEN,
                format!(
                    "no changes are made over TCP: use `penstock reload` and the other commands, \
                     which use the control socket{socket}, or set server.admin_token and send it as \
                     `Authorization: Bearer TOKEN`"
                ),
            ),
            Permission::TokenMissing => (
                Status::UNAUTHORIZED,
                format!(
                    "a change over TCP needs the token of server.admin_token, as \
                     `Authorization: Bearer TOKEN`; `penstock reload` and the other commands use \
                     the control socket{socket}"
                ),
            ),
            Permission::TokenWrong => {
                let path = String::from_utf8_lossy(request.path()).into_owned();
                let from = request.peer_name();
                log::warn!("admin: POST {path} refused: wrong token (client={from})");
                let error = "that is not the token of server.admin_token".to_owned();
                (Status::UNAUTHORIZED, error)
            }
            Permission::TooManyWrongTokens => (
                Status::TOO_MANY_REQUESTS,
                "too many wrong tokens: wait a second".to_owned(),
            ),
        };
        let (status, error) = match permission {
            Permission::ChangesDisabled | Permission::TokenMissing if is_for_publishers => (
                Status::UNAUTHORIZED,
                "this needs a token over TCP: an application with `grip` finds an address with \
                 one in PENSTOCK_PUBLISH_URL, and a key in GRIP_URL; `penstock publish` and the other \
                 commands use the control socket"
                    .to_owned(),
            ),
            _ => (status, error),
        };
        let made = match is_for_publishers {
            // Libraries that publish show the text.
            true => Ok(text_response(status, format!("{error}\n"))),
            false => json_response(status, &ChangeOutcome::failed(error)),
        };
        Some(made.map(with_retry_fields))
    }

    fn respond_to_read(&self, what: ReadRoute, head: &RequestHead) -> Result<Response, Fault> {
        Ok(match what {
            ReadRoute::Asset(asset) => asset_response(asset),
            ReadRoute::Events if head.method() == Method::Head => {
                build_response(Status::OK, "text/event-stream", Body::Omitted(None))
            }
            ReadRoute::Events => match self.event_feed.open() {
                Some(events) => build_response(
                    Status::OK,
                    "text/event-stream",
                    Body::Stream(Box::new(events)),
                ),
                None => unavailable_response("too many live pages are open\n"),
            },
            ReadRoute::Snapshot => json_response(Status::OK, &self.operations.snapshot())?,
            ReadRoute::History => json_response(Status::OK, &self.operations.history())?,
            ReadRoute::Metrics => {
                let format = MetricsFormat::accepted_by(head);
                let text = metrics_text::render_metrics(&self.operations.snapshot(), format);
                build_response(Status::OK, format.content_type(), Body::Bytes(text.into()))
            }
            ReadRoute::Health => text_response(Status::OK, "ok\n"),
            ReadRoute::Readiness => match self.operations.check_ready() {
                Ok(()) => text_response(Status::OK, "ready\n"),
                Err(reason) => unavailable_response(format!("{reason}\n")),
            },
        })
    }

    fn respond_to_change(&self, what: ChangeRoute<'_>, body: RequestBody) -> HandlerProgress {
        let operations = Arc::clone(&self.operations);
        let work: BoxFuture<'static, _> = match what {
            ChangeRoute::Stop => Box::pin(handle_stop(operations, body)),
            ChangeRoute::Reload => {
                let work = operations.reload();
                Box::pin(async move { message_response(work.await) })
            }
            ChangeRoute::Upgrade => Box::pin(handle_upgrade(operations, body)),
            ChangeRoute::ReopenLogs => {
                let work = operations.reopen_logs();
                Box::pin(async move { message_response(work.await) })
            }
            ChangeRoute::Restart(app) => {
                let work = operations.restart_app(app);
                let unknown = format!("there is no application named {app}");
                Box::pin(async move {
                    let done = work.await.ok_or_else(|| ChangeError::not_found(unknown));
                    let done = done.and_then(|done| done.map_err(ChangeError::conflict));
                    change_response(done.map(ChangeOutcome::succeeded))
                })
            }
            ChangeRoute::Servers(upstream) => {
                Box::pin(handle_server_change(operations, upstream.to_owned(), body))
            }
            ChangeRoute::Pause(back_end) => {
                Box::pin(handle_pause(operations, back_end.name(), body))
            }
            ChangeRoute::Resume(back_end) => {
                let done = operations.resume(back_end.name());
                return self.respond_now(sentence_response(done));
            }
            ChangeRoute::Maintenance => Box::pin(handle_maintenance(operations, body)),
            ChangeRoute::Purge => Box::pin(handle_purge(operations, body)),
        };
        HandlerProgress::Pending(Box::pin(async move { with_handler_name(work.await) }))
    }

    /// Publishes, and logs why not.
    fn publish(
        &self,
        request: &Request,
        form: Option<publish::ResponseFormat>,
        body: RequestBody,
    ) -> HandlerProgress {
        let client = request.peer_name().to_string();
        let namespace = match self.authorize(request, true) {
            Ok(namespace) => namespace,
            Err(refused) => {
                if let Ok(response) = &*refused {
                    log_refused_publication(&self.refused_publications, response, &client);
                }
                return self.respond_now(*refused);
            }
        };
        let operations = Arc::clone(&self.operations);
        let refused = Arc::clone(&self.refused_publications);
        HandlerProgress::Pending(Box::pin(async move {
            let done = publish::handle_publish(&*operations, form, namespace.as_deref(), body);
            let response = done.await?;
            log_refused_publication(&refused, &response, &client);
            with_handler_name(Ok(response))
        }))
    }

    /// Lists the channels with subscribers, only those of `namespace` if there is one.
    fn list_channels(&self, request: &Request, namespace: Option<String>) -> HandlerProgress {
        let mut filter = ChannelFilter::default();
        let query = request.query().unwrap_or_default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "channel" => filter.channel = Some(value.into_owned()),
                "namespace" => filter.namespace = Some(value.into_owned()),
                _ => {}
            }
        }
        if let Some(own) = namespace {
            if filter
                .namespace
                .as_ref()
                .is_some_and(|wanted| *wanted != own)
            {
                let text = format!("this key is of the namespace `{own}` only\n");
                return self.respond_now(Ok(text_response(Status::FORBIDDEN, text)));
            }
            filter.namespace = Some(own);
        }
        let listing = self.operations.list_channels(filter, MAX_CHANNELS);
        HandlerProgress::Pending(Box::pin(async move {
            let channels = listing.await;
            let list = ChannelList {
                is_complete: channels.len() < MAX_CHANNELS,
                channels,
            };
            with_handler_name(json_response(Status::OK, &list))
        }))
    }

    fn respond_now(&self, made: Result<Response, Fault>) -> HandlerProgress {
        HandlerProgress::Ready(with_handler_name(made))
    }
}

impl Handler for AdminHandler {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        let body = std::mem::replace(&mut request.body, RequestBody::Empty);
        match route_request(&request) {
            Ok(AdminRoute::Read(what)) => {
                self.respond_now(self.respond_to_read(what, &request.head))
            }
            Ok(AdminRoute::Publish(form)) => self.publish(&request, form, body),
            Ok(AdminRoute::Change(what)) => match self.authorize(&request, false) {
                Ok(_) => self.respond_to_change(what, body),
                Err(refused) => self.respond_now(*refused),
            },
            Ok(AdminRoute::Channels) => match self.authorize(&request, true) {
                Ok(namespace) => self.list_channels(&request, namespace),
                Err(refused) => self.respond_now(*refused),
            },
            Err(refusal) => self.respond_now(Ok(refusal.into_response())),
        }
    }
}

/// Logs a response that refuses a publication for good: what is merely too fast is repeated.
fn log_refused_publication(throttle: &LogThrottle, response: &Response, client: &str) {
    if !matches!(
        response.status,
        Status::BAD_REQUEST | Status::UNAUTHORIZED | Status::CONTENT_TOO_LARGE
    ) {
        return;
    }
    let Body::Bytes(text) = &response.body else {
        return;
    };
    let cause = String::from_utf8_lossy(text);
    let cause = cause.trim_end();
    if throttle.admit_line(cause, clock::now()).is_some() {
        let status = response.status.code();
        log::warn!("admin: POST /publish/ refused with {status}: {cause} (client={client})");
    }
}

/// The response to a change that is not permitted.
type ChangeRefusal = Box<Result<Response, Fault>>;

/// Answers 403 to every request of a caller that may not use the control socket.
#[derive(Debug)]
pub struct ForbiddenHandler;

impl Handler for ForbiddenHandler {
    fn handle(&self, _: Request) -> HandlerProgress {
        let error = "refused: only root and whoever started this server may use this socket, and no \
                     process that the server has started; the server's log says which this is";
        HandlerProgress::Ready(with_handler_name(json_response(
            Status::FORBIDDEN,
            &ChangeOutcome::failed(error.to_owned()),
        )))
    }
}

/// The response with the outcome of a change.
fn change_response(done: Result<ChangeOutcome, ChangeError>) -> Result<Response, Fault> {
    match done {
        Ok(outcome) => json_response(Status::OK, &outcome),
        Err(error) => json_response(error.status, &ChangeOutcome::failed(error.text)),
    }
}

/// The response with the message of a change, or why it is not possible.
fn message_response(done: Result<String, String>) -> Result<Response, Fault> {
    let outcome = done.map(|message| ChangeOutcome::succeeded(Some(message)));
    change_response(outcome.map_err(ChangeError::conflict))
}

/// The response with the sentence of a change.
fn sentence_response(done: Result<String, ChangeError>) -> Result<Response, Fault> {
    change_response(done.map(|message| ChangeOutcome::succeeded(Some(message))))
}

/// The maximum size of the body of a change: far more than any needs.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Reads the whole body.
///
/// # Errors
/// The outer error: the client disconnected or is too slow. The inner error: the body is too large.
async fn read_body(body: RequestBody) -> Result<Result<Vec<u8>, ChangeError>, Fault> {
    let text = body.read_limited(MAX_BODY_BYTES).await?;
    Ok(text.ok_or_else(|| ChangeError {
        status: Status::CONTENT_TOO_LARGE,
        text: format!("more than {MAX_BODY_BYTES} bytes"),
    }))
}

/// Begins to stop. The response comes at once, or, where the body asks for that, when all
/// processes have ended.
async fn handle_stop(
    source: Arc<dyn AdminOperations>,
    body: RequestBody,
) -> Result<Response, Fault> {
    #[derive(Default, serde::Deserialize)]
    struct Wanted {
        #[serde(default, rename = "wait")]
        waits: bool,
    }
    // A stop needs no body, and no body is a reason not to stop.
    let text = read_body(body).await?.unwrap_or_default();
    let wanted: Wanted = serde_json::from_slice(&text).unwrap_or_default();
    let report = source.stop_report();
    source.stop();
    if !wanted.waits {
        return json_response(Status::ACCEPTED, &ChangeOutcome::succeeded(None));
    }
    let report = report.await;
    let message = (!report.is_empty()).then(|| report.join("\n"));
    json_response(Status::OK, &ChangeOutcome::succeeded(message))
}

/// Reads the path of the new program, if there is one, and starts the upgrade.
async fn handle_upgrade(
    source: Arc<dyn AdminOperations>,
    body: RequestBody,
) -> Result<Response, Fault> {
    #[derive(Default, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        binary: Option<String>,
    }
    let wanted = match read_body(body).await? {
        Ok(text) if text.is_empty() => Ok(Wanted::default()),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        Err(error) => Err(error.text),
    };
    match wanted {
        Ok(Wanted { binary }) => message_response(source.upgrade(binary).await),
        Err(error) => change_response(Err(ChangeError::bad_request(format!(
            "{error}: expected nothing, or {{\"binary\": \"/path\"}}"
        )))),
    }
}

/// Reads and makes a change of an upstream's servers.
async fn handle_server_change(
    source: Arc<dyn AdminOperations>,
    upstream: String,
    body: RequestBody,
) -> Result<Response, Fault> {
    let text = read_body(body).await?;
    let done = match text.and_then(|text| server_changes::parse_server_change(&text)) {
        Ok(change) => source.change_servers(&upstream, change).await,
        Err(error) => Err(error),
    };
    change_response(done.map(|message| ChangeOutcome::succeeded(Some(message))))
}

/// Reads and makes a pause.
async fn handle_pause(
    source: Arc<dyn AdminOperations>,
    name: BackEndName,
    body: RequestBody,
) -> Result<Response, Fault> {
    let text = read_body(body).await?;
    let max_wait = text.and_then(|text| traffic_changes::parse_pause(&text));
    sentence_response(max_wait.and_then(|max_wait| source.pause(name, max_wait)))
}

/// Reads and makes a change of maintenance.
async fn handle_maintenance(
    source: Arc<dyn AdminOperations>,
    body: RequestBody,
) -> Result<Response, Fault> {
    let text = read_body(body).await?;
    let change = text.and_then(|text| traffic_changes::parse_maintenance(&text));
    sentence_response(change.and_then(|change| source.set_maintenance(change)))
}

/// Reads and makes a purge.
async fn handle_purge(
    source: Arc<dyn AdminOperations>,
    body: RequestBody,
) -> Result<Response, Fault> {
    let text = read_body(body).await?;
    let done = match text.and_then(|text| purge::parse_purge(&text)) {
        Ok(wanted) => source.purge(wanted).await,
        Err(error) => Err(error),
    };
    change_response(done.map(ChangeOutcome::purged))
}

/// The route of a request.
#[derive(Debug, Clone, Copy)]
enum AdminRoute<'a> {
    Read(ReadRoute),
    /// The channels with subscribers: read with the permission of a change.
    Channels,
    Change(ChangeRoute<'a>),
    /// Publishes; with the form of the response, if the client accepts one.
    Publish(Option<publish::ResponseFormat>),
}

#[derive(Debug, Clone, Copy)]
enum ReadRoute {
    Asset(&'static Asset),
    Events,
    Snapshot,
    History,
    Metrics,
    Health,
    Readiness,
}

#[derive(Debug, Clone, Copy)]
enum ChangeRoute<'a> {
    Reload,
    Upgrade,
    ReopenLogs,
    Restart(&'a str),
    Servers(&'a str),
    Pause(BackEndPath<'a>),
    Resume(BackEndPath<'a>),
    Maintenance,
    Purge,
    Stop,
}

/// A back end that a path names.
#[derive(Debug, Clone, Copy)]
enum BackEndPath<'a> {
    App(&'a str),
    Upstream(&'a str),
}

impl BackEndPath<'_> {
    fn name(self) -> BackEndName {
        match self {
            Self::App(name) => BackEndName::App(name.to_owned()),
            Self::Upstream(name) => BackEndName::Upstream(name.to_owned()),
        }
    }
}

/// Why a request was refused before routing.
#[derive(Debug, Clone, Copy)]
enum RouteRefusal {
    UntrustedHost,
    UnknownPath,
    MethodNotAllowed(&'static str),
    ForeignOrigin,
}

/// Routes a request that passes the checks.
fn route_request(request: &Request) -> Result<AdminRoute<'_>, RouteRefusal> {
    let head: &RequestHead = &request.head;
    let path = std::str::from_utf8(request.path());
    let route = path.ok().and_then(|path| find_route(path, head));
    // Prometheus and probes use any name of this machine and read nothing that a foreign page could
    // misuse. A publisher on another machine uses a name too, and its token is one that no foreign
    // page knows. A browser cannot connect to a Unix socket.
    let is_open = match route {
        Some(AdminRoute::Read(ReadRoute::Metrics | ReadRoute::Health | ReadRoute::Readiness)) => {
            true
        }
        Some(AdminRoute::Publish(_) | AdminRoute::Channels) => {
            head.field("authorization").is_some() || publish::publisher_token(head).is_some()
        }
        _ => false,
    };
    if !is_open && request.listener.address.is_some() && !browser_guard::is_host_trusted(head) {
        return Err(RouteRefusal::UntrustedHost);
    }
    let route = route.ok_or(RouteRefusal::UnknownPath)?;
    match (route, head.method()) {
        (AdminRoute::Read(_) | AdminRoute::Channels, Method::Get | Method::Head) => Ok(route),
        (AdminRoute::Read(_) | AdminRoute::Channels, _) => {
            Err(RouteRefusal::MethodNotAllowed("GET, HEAD"))
        }
        (_, Method::Post) if browser_guard::is_same_origin(head) => Ok(route),
        (_, Method::Post) => Err(RouteRefusal::ForeignOrigin),
        (_, _) => Err(RouteRefusal::MethodNotAllowed("POST")),
    }
}

fn find_route<'a>(path: &'a str, head: &'a RequestHead) -> Option<AdminRoute<'a>> {
    Some(match path {
        "/events" => AdminRoute::Read(ReadRoute::Events),
        "/status.json" => AdminRoute::Read(ReadRoute::Snapshot),
        "/history.json" => AdminRoute::Read(ReadRoute::History),
        "/metrics" => AdminRoute::Read(ReadRoute::Metrics),
        "/channels" | "/channels/" => AdminRoute::Channels,
        "/healthz" => AdminRoute::Read(ReadRoute::Health),
        "/readyz" => AdminRoute::Read(ReadRoute::Readiness),
        "/reload" => AdminRoute::Change(ChangeRoute::Reload),
        "/stop" => AdminRoute::Change(ChangeRoute::Stop),
        "/upgrade" => AdminRoute::Change(ChangeRoute::Upgrade),
        "/logs/reopen" => AdminRoute::Change(ChangeRoute::ReopenLogs),
        "/maintenance" => AdminRoute::Change(ChangeRoute::Maintenance),
        "/cache/purge" => AdminRoute::Change(ChangeRoute::Purge),
        "/publish" | "/publish/" => {
            let form = publish::ResponseFormat::from_accept(head.field("accept"));
            AdminRoute::Publish(form)
        }
        other => match ASSETS.iter().find(|asset| asset.path == other) {
            Some(asset) => AdminRoute::Read(ReadRoute::Asset(asset)),
            None => AdminRoute::Change(find_named_change(other)?),
        },
    })
}

/// A change of a part that the path names.
fn find_named_change(path: &str) -> Option<ChangeRoute<'_>> {
    let restart = path_segment_between(path, "/apps/", "/restart").map(ChangeRoute::Restart);
    let back_end = |action| {
        let app = path_segment_between(path, "/apps/", action).map(BackEndPath::App);
        let upstream = || path_segment_between(path, "/upstreams/", action);
        app.or_else(|| upstream().map(BackEndPath::Upstream))
    };
    restart
        .or_else(|| path_segment_between(path, "/upstreams/", "/servers").map(ChangeRoute::Servers))
        .or_else(|| back_end("/pause").map(ChangeRoute::Pause))
        .or_else(|| back_end("/resume").map(ChangeRoute::Resume))
}

/// The single segment between a prefix and a suffix.
fn path_segment_between<'a>(path: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let name = path.strip_prefix(before)?.strip_suffix(after)?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

impl RouteRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::UntrustedHost => text_response(
                Status::FORBIDDEN,
                "the admin interface answers to an IP address or to localhost only; \
                 by other names only /metrics, /healthz, /readyz, and with a token /publish/ and \
                 /channels\n",
            ),
            Self::UnknownPath => {
                text_response(Status::NOT_FOUND, "there is nothing at this address\n")
            }
            Self::ForeignOrigin => text_response(
                Status::FORBIDDEN,
                "another origin may not change anything here\n",
            ),
            Self::MethodNotAllowed(allowed) => {
                let mut response = text_response(
                    Status::METHOD_NOT_ALLOWED,
                    format!("this address takes {allowed}\n"),
                );
                response.fields.push_static("Allow", allowed);
                response
            }
        }
    }
}

/// The reply with the name of this handler.
pub(crate) fn with_handler_name(made: Result<Response, Fault>) -> Result<Reply, Fault> {
    let mut response = made?;
    response.timing.handler = Some(HandlerName::Component("status"));
    Ok(response.into())
}

/// Channels with subscribers as JSON.
#[derive(Debug, Serialize)]
struct ChannelList {
    channels: Vec<ChannelPresence>,
    /// Whether there are no more than these.
    #[serde(rename = "complete")]
    is_complete: bool,
}

/// The most channels in a list.
const MAX_CHANNELS: usize = 1000;

/// The outcome of a change as JSON.
#[derive(Debug, Default, Serialize)]
struct ChangeOutcome {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The number of purged objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ChangeOutcome {
    fn succeeded(message: Option<String>) -> Self {
        Self {
            ok: true,
            message,
            ..Self::default()
        }
    }

    fn purged(objects: u64) -> Self {
        Self {
            objects: Some(objects),
            ..Self::succeeded(None)
        }
    }

    fn failed(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }
}

fn asset_response(asset: &Asset) -> Response {
    let body = Body::Bytes(Bytes::from_static(asset.text.as_bytes()));
    let mut response = build_response(Status::OK, asset.content_type, body);
    response
        .fields
        .push_static("Content-Security-Policy", CONTENT_SECURITY_POLICY);
    response
}

fn json_response<T: Serialize>(status: Status, value: &T) -> Result<Response, Fault> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Fault::new(FaultKind::Internal, format!("status as json: {error}")))?;
    Ok(build_response(
        status,
        "application/json",
        Body::Bytes(text.into()),
    ))
}

pub(crate) fn text_response(status: Status, text: impl Into<Bytes>) -> Response {
    build_response(
        status,
        "text/plain; charset=utf-8",
        Body::Bytes(text.into()),
    )
}

/// Adds the field that tells the client how to try again.
pub(crate) fn with_retry_fields(mut response: Response) -> Response {
    let fields = &mut response.fields;
    match response.status {
        Status::UNAUTHORIZED => {
            fields.push_static("WWW-Authenticate", "Bearer realm=\"penstock\"");
        }
        Status::TOO_MANY_REQUESTS => fields.push_static("Retry-After", "1"),
        _ => {}
    }
    response
}

pub(crate) fn unavailable_response(reason: impl Into<Bytes>) -> Response {
    let mut response = text_response(Status::SERVICE_UNAVAILABLE, reason);
    response.fields.push_static("Retry-After", "5");
    response
}

pub(crate) fn build_response(status: Status, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(status, body);
    let fields = &mut response.fields;
    fields.push_static("Content-Type", content_type);
    fields.push_static("Cache-Control", "no-store");
    fields.push_static("X-Content-Type-Options", "nosniff");
    fields.push_static("X-Frame-Options", "DENY");
    fields.push_static("Cross-Origin-Resource-Policy", "same-origin");
    fields.push_static("Referrer-Policy", "same-origin");
    response
}

#[cfg(test)]
mod tests;
