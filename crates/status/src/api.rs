//! The admin listener's handler: routes, refusals, and the answers that need no file of their own.
//!
//! Asked by edge like any handler. Order of checks: host, path, method, origin (`guard` knows hosts
//! and origins), then whether who asks may change things (`authority`).
//!
//! # Invariants
//! - GET and HEAD change nothing. A change is a POST that passed the host and origin checks, from
//!   somebody who has the authority.
//! - Only `/metrics`, `/healthz` and `/readyz` answer to any host name.
//! - No answer is ever stored by a cache.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::{
    Body, Fault, FaultKind, Handler, HandlerName, HandlerProgress, Reply, Request, RequestBody,
    Response,
};
use penstock_http::{Method, RequestHead, Status};
use penstock_runtime::clock;
use serde::Serialize;

use crate::authority::{Authority, Permission};
use crate::events::{EVENT_INTERVAL, Feed};
use crate::manage::BadChange;
use crate::page::{ASSETS, Asset, POLICY};
use crate::{
    BoxFuture, ManageError, PublishError, PurgeError, Source, exposition, guard, manage, publish,
    purge,
};

/// The admin API as a handler.
#[derive(Debug)]
pub struct Admin {
    source: Arc<dyn Source>,
    feed: Arc<Feed>,
    authority: Authority,
}

impl Admin {
    /// The admin API of the server behind `source`, which those with `authority` may change.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, authority: Authority) -> Self {
        let feed = Feed::new(Arc::clone(&source), EVENT_INTERVAL);
        Self {
            source,
            feed,
            authority,
        }
    }

    /// Admits a change before anything of its body is read; gives the namespace of a publisher who has
    /// a publish key.
    ///
    /// # Errors
    /// The answer to a caller who may not make this change.
    fn admit(&self, request: &Request, change: Change<'_>) -> Result<Option<String>, Refused> {
        // Applications publish with a GRIP library, over TCP, by keys of their own.
        let error = match self.publisher(request, change) {
            Some(Ok(namespace)) => return Ok(Some(namespace)),
            // It is of an application, so it is no wrong token of an administrator.
            Some(Err(error @ PublishError::Invalid(_))) => {
                return Err(Box::new(Ok(publish::refused(&error))));
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        let refused = match (&self.authority, &error) {
            // An administrator's token may look like one of a publish key.
            (Authority::Token(_), _) | (_, None) => self.refuse(request, change),
            (Authority::Connected | Authority::Nobody, Some(error)) => {
                Some(Ok(publish::refused(error)))
            }
        };
        match (refused, error) {
            (None, _) => Ok(None),
            // The cause that helps an application.
            (Some(Ok(response)), Some(error)) if response.status == Status::UNAUTHORIZED => {
                Err(Box::new(Ok(publish::refused(&error))))
            }
            (Some(refused), _) => Err(Box::new(refused)),
        }
    }

    /// The namespace of whoever publishes with what looks like a token of a publish key.
    fn publisher(
        &self,
        request: &Request,
        change: Change<'_>,
    ) -> Option<Result<String, PublishError>> {
        let Change::Publish(_) = change else {
            return None;
        };
        let token = publish::token(&request.head)?;
        Some(self.source.publisher(&token))
    }

    /// The answer to somebody who may not make this change; none to somebody who may.
    fn refuse(&self, request: &Request, change: Change<'_>) -> Option<Result<Response, Fault>> {
        let permission = self.authority.permit(&request.head, clock::now());
        let socket = self.source.control();
        let socket = socket.map_or_else(String::new, |socket| format!(" ({socket})"));
        let (status, error) = match permission {
            Permission::Granted => return None,
            Permission::Closed => (
                Status::FORBIDDEN,
                format!(
                    "no changes are made over TCP: use `penstock reload` and the other commands, \
                     which use the control socket{socket}, or set server.admin_token and send it as \
                     `Authorization: Bearer TOKEN`"
                ),
            ),
            Permission::Missing => (
                Status::UNAUTHORIZED,
                format!(
                    "a change over TCP needs the token of server.admin_token, as \
                     `Authorization: Bearer TOKEN`; `penstock reload` and the other commands use \
                     the control socket{socket}"
                ),
            ),
            Permission::Wrong => {
                let path = String::from_utf8_lossy(request.path()).into_owned();
                let from = request.peer_name();
                log::warn!("admin: POST {path} refused: wrong token (client={from})");
                let error = "that is not the token of server.admin_token".to_owned();
                (Status::UNAUTHORIZED, error)
            }
            Permission::TooManyWrong => (
                Status::TOO_MANY_REQUESTS,
                "too many wrong tokens: wait a second".to_owned(),
            ),
        };
        let is_publish = matches!(change, Change::Publish(_));
        let (status, error) = match permission {
            Permission::Closed | Permission::Missing if is_publish => (
                Status::UNAUTHORIZED,
                "messages over TCP need a token: an application with `grip` has a key for that in \
                 GRIP_URL; `penstock publish` uses the control socket"
                    .to_owned(),
            ),
            _ => (status, error),
        };
        let made = match change {
            // Libraries that publish show the text.
            Change::Publish(_) => Ok(text(status, format!("{error}\n"))),
            _ => json(status, &Outcome::failed(error)),
        };
        Some(made.map(|mut response| {
            match status {
                Status::UNAUTHORIZED => response
                    .fields
                    .push_static("WWW-Authenticate", "Bearer realm=\"penstock\""),
                Status::TOO_MANY_REQUESTS => response.fields.push_static("Retry-After", "1"),
                _ => {}
            }
            response
        }))
    }

    fn read(&self, what: Read, method: Method) -> Result<Response, Fault> {
        Ok(match what {
            Read::Asset(asset) => of_asset(asset),
            Read::Events if method == Method::Head => {
                respond(Status::OK, "text/event-stream", Body::Omitted(None))
            }
            Read::Events => match self.feed.open() {
                Some(events) => respond(
                    Status::OK,
                    "text/event-stream",
                    Body::Stream(Box::new(events)),
                ),
                None => retry_later("too many live pages are open\n"),
            },
            Read::Snapshot => json(Status::OK, &self.source.snapshot())?,
            Read::Metrics => {
                let text = exposition::render(&*self.source);
                respond(
                    Status::OK,
                    exposition::CONTENT_TYPE,
                    Body::Bytes(text.into()),
                )
            }
            Read::Health => text(Status::OK, "ok\n"),
            Read::Readiness => match self.source.ready() {
                Ok(()) => text(Status::OK, "ready\n"),
                Err(reason) => retry_later(format!("{reason}\n")),
            },
        })
    }

    fn change(
        &self,
        what: Change<'_>,
        namespace: Option<String>,
        body: RequestBody,
    ) -> HandlerProgress {
        match what {
            Change::Stop => {
                self.source.stop();
                self.now(json(Status::ACCEPTED, &Outcome::done(None)))
            }
            Change::Reload => {
                let work = self.source.reload();
                self.later(Box::pin(async move { told(work.await) }))
            }
            Change::Upgrade => {
                let work = upgrade(Arc::clone(&self.source), body);
                self.later(Box::pin(work))
            }
            Change::ReopenLogs => {
                let work = self.source.reopen_logs();
                self.later(Box::pin(async move { told(work.await) }))
            }
            Change::Restart(app) => {
                let work = self.source.restart(app);
                let unknown = format!("there is no application named {app}");
                self.later(Box::pin(async move {
                    match work.await {
                        Some(Ok(())) => json(Status::OK, &Outcome::done(None)),
                        Some(Err(error)) => json(Status::CONFLICT, &Outcome::failed(error)),
                        None => json(Status::NOT_FOUND, &Outcome::failed(unknown)),
                    }
                }))
            }
            Change::Servers(upstream) => {
                let work = change_servers(Arc::clone(&self.source), upstream.to_owned(), body);
                self.later(Box::pin(work))
            }
            Change::Purge => {
                let work = purge_caches(Arc::clone(&self.source), body);
                self.later(Box::pin(work))
            }
            Change::Publish(form) => {
                let source = Arc::clone(&self.source);
                self.later(Box::pin(async move {
                    publish::publish(&*source, form, namespace.as_deref(), body).await
                }))
            }
        }
    }

    fn now(&self, made: Result<Response, Fault>) -> HandlerProgress {
        HandlerProgress::Ready(sign(made))
    }

    fn later(&self, work: BoxFuture<'static, Result<Response, Fault>>) -> HandlerProgress {
        HandlerProgress::Pending(Box::pin(async move { sign(work.await) }))
    }
}

impl Handler for Admin {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        let body = std::mem::replace(&mut request.body, RequestBody::Empty);
        match decide(&request) {
            Ok(Route::Read(what)) => self.now(self.read(what, request.head.method())),
            Ok(Route::Change(what)) => match self.admit(&request, what) {
                Ok(namespace) => self.change(what, namespace, body),
                Err(refused) => self.now(*refused),
            },
            Err(refusal) => self.now(Ok(refusal.respond())),
        }
    }
}

/// The answer to a change that is not admitted.
type Refused = Box<Result<Response, Fault>>;

/// The answer to callers of the control socket who may not use it: 403, whatever they ask.
#[derive(Debug)]
pub struct Refusing;

impl Handler for Refusing {
    fn handle(&self, _: Request) -> HandlerProgress {
        let error = "refused: only root and whoever started this server may use this socket, and no \
                     process that the server has started; the server's log says which this is";
        HandlerProgress::Ready(sign(json(
            Status::FORBIDDEN,
            &Outcome::failed(error.to_owned()),
        )))
    }
}

/// How a change went, in the server's own words.
fn told(done: Result<String, String>) -> Result<Response, Fault> {
    match done {
        Ok(message) => json(Status::OK, &Outcome::done(Some(message))),
        Err(error) => json(Status::CONFLICT, &Outcome::failed(error)),
    }
}

/// Reads which program is to follow, if one is named, and has it done.
async fn upgrade(source: Arc<dyn Source>, body: RequestBody) -> Result<Response, Fault> {
    #[derive(Default, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        binary: Option<String>,
    }
    let wanted = match manage::read(body).await? {
        Ok(text) if text.is_empty() => Ok(Wanted::default()),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match wanted {
        Ok(Wanted { binary }) => told(source.upgrade(binary).await),
        Err(error) => {
            let error = format!("{error}: expected nothing, or {{\"binary\": \"/path\"}}");
            json(Status::BAD_REQUEST, &Outcome::failed(error))
        }
    }
}

/// Reads what is wanted of an upstream's servers, and has it done.
async fn change_servers(
    source: Arc<dyn Source>,
    upstream: String,
    body: RequestBody,
) -> Result<Response, Fault> {
    let text = manage::read(body).await?;
    let change = match text.and_then(|text| manage::parse(&text)) {
        Ok(change) => change,
        Err(error) => {
            let status = match error {
                BadChange::TooLarge(_) => Status::CONTENT_TOO_LARGE,
                BadChange::Malformed(_) | BadChange::NotAnObject => Status::BAD_REQUEST,
            };
            return json(status, &Outcome::failed(error.to_string()));
        }
    };
    match source.manage(&upstream, change).await {
        Ok(message) => json(Status::OK, &Outcome::done(Some(message))),
        Err(error) => {
            let status = match error {
                ManageError::BadAddress { .. } => Status::BAD_REQUEST,
                ManageError::UnknownUpstream(_) | ManageError::UnknownServer { .. } => {
                    Status::NOT_FOUND
                }
                ManageError::Refused(_) => Status::CONFLICT,
            };
            json(status, &Outcome::failed(error.to_string()))
        }
    }
}

/// Reads what is to go out of the caches, and has it done.
async fn purge_caches(source: Arc<dyn Source>, body: RequestBody) -> Result<Response, Fault> {
    let wanted = match manage::read(body).await? {
        Ok(text) => purge::parse(&text),
        Err(error) => {
            let outcome = Outcome::failed(error.to_string());
            return json(Status::CONTENT_TOO_LARGE, &outcome);
        }
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(error) => return json(Status::BAD_REQUEST, &Outcome::failed(error.to_string())),
    };
    match source.purge(wanted).await {
        Ok(objects) => json(Status::OK, &Outcome::purged(objects)),
        Err(error) => {
            let status = match error {
                PurgeError::UnknownCache(_) => Status::NOT_FOUND,
                PurgeError::Refused(_) => Status::SERVICE_UNAVAILABLE,
            };
            json(status, &Outcome::failed(error.to_string()))
        }
    }
}

/// What a request wants.
#[derive(Debug, Clone, Copy)]
enum Route<'a> {
    Read(Read),
    Change(Change<'a>),
}

#[derive(Debug, Clone, Copy)]
enum Read {
    Asset(&'static Asset),
    Events,
    Snapshot,
    Metrics,
    Health,
    Readiness,
}

#[derive(Debug, Clone, Copy)]
enum Change<'a> {
    Reload,
    Upgrade,
    ReopenLogs,
    Restart(&'a str),
    Servers(&'a str),
    Purge,
    /// With the form of the answer, if the client takes any.
    Publish(Option<publish::Form>),
    Stop,
}

/// Why a request is not even looked at.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Host,
    Path,
    Method(&'static str),
    Origin,
}

/// The request's route, when it may take it.
fn decide(request: &Request) -> Result<Route<'_>, Refusal> {
    let head: &RequestHead = &request.head;
    let path = std::str::from_utf8(request.path());
    let route = path.ok().and_then(|path| find(path, head));
    // Prometheus and probes use whatever name the network has for this machine, and learn nothing
    // that a page could do harm with. No browser can be brought to speak to a Unix socket.
    let is_open = matches!(
        route,
        Some(Route::Read(Read::Metrics | Read::Health | Read::Readiness))
    );
    if !is_open && request.listener.address.is_some() && !guard::is_host_trusted(head) {
        return Err(Refusal::Host);
    }
    let route = route.ok_or(Refusal::Path)?;
    match (route, head.method()) {
        (Route::Read(_), Method::Get | Method::Head) => Ok(route),
        (Route::Read(_), _) => Err(Refusal::Method("GET, HEAD")),
        (Route::Change(_), Method::Post) if guard::is_same_origin(head) => Ok(route),
        (Route::Change(_), Method::Post) => Err(Refusal::Origin),
        (Route::Change(_), _) => Err(Refusal::Method("POST")),
    }
}

fn find<'a>(path: &'a str, head: &'a RequestHead) -> Option<Route<'a>> {
    Some(match path {
        "/events" => Route::Read(Read::Events),
        "/status.json" => Route::Read(Read::Snapshot),
        "/metrics" => Route::Read(Read::Metrics),
        "/healthz" => Route::Read(Read::Health),
        "/readyz" => Route::Read(Read::Readiness),
        "/reload" => Route::Change(Change::Reload),
        "/stop" => Route::Change(Change::Stop),
        "/upgrade" => Route::Change(Change::Upgrade),
        "/logs/reopen" => Route::Change(Change::ReopenLogs),
        "/cache/purge" => Route::Change(Change::Purge),
        "/publish" | "/publish/" => {
            let form = publish::Form::wanted(head.field("accept"));
            Route::Change(Change::Publish(form))
        }
        other => match ASSETS.iter().find(|asset| asset.path == other) {
            Some(asset) => Route::Read(Read::Asset(asset)),
            None => Route::Change(find_named(other)?),
        },
    })
}

/// Changes of something that the path names.
fn find_named(path: &str) -> Option<Change<'_>> {
    let restart = between(path, "/apps/", "/restart").map(Change::Restart);
    restart.or_else(|| between(path, "/upstreams/", "/servers").map(Change::Servers))
}

/// The one segment between two parts of a path.
fn between<'a>(path: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let name = path.strip_prefix(before)?.strip_suffix(after)?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

impl Refusal {
    fn respond(self) -> Response {
        match self {
            Self::Host => text(
                Status::FORBIDDEN,
                "the admin interface answers to an IP address or to localhost only; \
                 by other names only /metrics, /healthz and /readyz\n",
            ),
            Self::Path => text(Status::NOT_FOUND, "there is nothing at this address\n"),
            Self::Origin => text(
                Status::FORBIDDEN,
                "another origin may not change anything here\n",
            ),
            Self::Method(allowed) => {
                let mut response = text(
                    Status::METHOD_NOT_ALLOWED,
                    format!("this address takes {allowed}\n"),
                );
                response.fields.push_static("Allow", allowed);
                response
            }
        }
    }
}

/// The reply with the name of this room in its timing.
pub(crate) fn sign(made: Result<Response, Fault>) -> Result<Reply, Fault> {
    let mut response = made?;
    response.timing.handler = Some(HandlerName::Component("status"));
    Ok(response.into())
}

/// How a change went, as JSON.
#[derive(Debug, Serialize)]
struct Outcome {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// How many objects went out of the caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Outcome {
    fn done(message: Option<String>) -> Self {
        Self {
            ok: true,
            message,
            objects: None,
            error: None,
        }
    }

    fn purged(objects: u64) -> Self {
        Self {
            objects: Some(objects),
            ..Self::done(None)
        }
    }

    fn failed(error: String) -> Self {
        Self {
            ok: false,
            error: Some(error),
            ..Self::done(None)
        }
    }
}

fn of_asset(asset: &Asset) -> Response {
    let body = Body::Bytes(Bytes::from_static(asset.text.as_bytes()));
    let mut response = respond(Status::OK, asset.content_type, body);
    response
        .fields
        .push_static("Content-Security-Policy", POLICY);
    response
}

fn json<T: Serialize>(status: Status, value: &T) -> Result<Response, Fault> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Fault::new(FaultKind::Internal, format!("status as json: {error}")))?;
    Ok(respond(
        status,
        "application/json",
        Body::Bytes(text.into()),
    ))
}

pub(crate) fn text(status: Status, text: impl Into<Bytes>) -> Response {
    respond(
        status,
        "text/plain; charset=utf-8",
        Body::Bytes(text.into()),
    )
}

pub(crate) fn retry_later(reason: impl Into<Bytes>) -> Response {
    let mut response = text(Status::SERVICE_UNAVAILABLE, reason);
    response.fields.push_static("Retry-After", "5");
    response
}

pub(crate) fn respond(status: Status, content_type: &'static str, body: Body) -> Response {
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
