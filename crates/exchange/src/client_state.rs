//! State that a connection shares with the request it is working on.
//!
//! `edge` watches the socket while a handler works and marks the client as disconnected; a handler
//! that only waits (in a queue) checks that and gives up. A handler leaves interim responses (1xx)
//! here, which edge sends ahead of the final one. Edge polls the handler's future in its own task
//! and looks here right after, so no waker is needed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use penstock_http::{FieldBlock, Status};

use crate::{AddressPrefix, Correlation, TlsInfo};

/// Bytes of interim responses that may wait for one client; more are dropped.
const MAX_INTERIM_BYTES: usize = 64 * 1024;

/// Shared by a connection and the request it is working on.
#[derive(Debug, Default)]
pub struct ClientState {
    is_disconnected: AtomicBool,
    /// Of the current request's client: behind a proxy each request may have another.
    address_prefix: AtomicU64,
    is_unnamed_proxy: AtomicBool,
    has_interim: AtomicBool,
    /// Held for a move only.
    interim: Mutex<Vec<(Status, FieldBlock)>>,
    tls: Option<Arc<TlsInfo>>,
    /// Whether there is anything in `request`.
    has_request_state: AtomicBool,
    /// What the current request has besides. Boxed, as most connections never need it. Held for a
    /// move or a copy only.
    request: Mutex<Option<Box<RequestState>>>,
}

/// What some requests have.
#[derive(Debug, Default)]
struct RequestState {
    /// The user that the client has proved to be.
    user: Option<Arc<str>>,
    /// Whether the client has proved to be one, whatever the name.
    is_authenticated: bool,
    /// What ties the request to its records elsewhere.
    correlation: Correlation,
    /// What is given back when the request has ended.
    permits: Vec<RequestPermit>,
}

/// Something that is given back, by its drop, when a request has ended.
pub type RequestPermit = Arc<dyn fmt::Debug + Send + Sync>;

impl ClientState {
    /// The state of a new connection.
    #[must_use]
    pub fn new(tls: Option<Arc<TlsInfo>>) -> Self {
        Self {
            tls,
            ..Self::default()
        }
    }

    /// The state of a request that is made on behalf of a client, who may leave without it: it has
    /// the client's user, and what ties the client's request to its records.
    #[must_use]
    pub fn on_behalf_of(client: &Self) -> Arc<Self> {
        let state = Self::default();
        state.set_user(client.user());
        if client.is_authenticated() {
            state.set_authenticated();
        }
        state.set_correlation(client.correlation());
        Arc::new(state)
    }

    /// The TLS session of the connection, if it has one.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<TlsInfo>> {
        self.tls.as_ref()
    }

    /// Sets the user that the client of the current request has proved to be; `None` for a client
    /// that has proved nothing yet.
    pub fn set_user(&self, user: Option<Arc<str>>) {
        if user.is_some() || self.has_request_state() {
            self.change(|request| {
                request.is_authenticated = user.is_some();
                request.user = user;
            });
        }
    }

    /// Notes that a rule has let the current request pass because of who its client is: a response
    /// to it may be for this client alone, whatever fields the request has.
    pub fn set_authenticated(&self) {
        self.change(|request| request.is_authenticated = true);
    }

    /// Whether a rule has let the current request pass because of who its client is.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.read(|request| request.is_authenticated)
    }

    /// The user that the client of the current request has proved to be.
    #[must_use]
    pub fn user(&self) -> Option<Arc<str>> {
        self.read(|request| request.user.clone())
    }

    /// Sets what ties the current request to its records elsewhere.
    pub fn set_correlation(&self, correlation: Correlation) {
        if !correlation.is_empty() || self.has_request_state() {
            self.change(|request| request.correlation = correlation);
        }
    }

    /// What ties the current request to its records elsewhere.
    #[must_use]
    pub fn correlation(&self) -> Correlation {
        self.read(|request| request.correlation.clone())
    }

    /// Holds a permit until the current request has ended: its response is out or was cut, or
    /// another part of the server has the connection.
    pub fn hold_permit(&self, permit: RequestPermit) {
        self.change(|request| request.permits.push(permit));
    }

    /// Gives all permits back: the current request has ended.
    pub fn release_permits(&self) {
        if self.has_request_state() {
            // Dropped behind the lock.
            let permits = self.change(|request| std::mem::take(&mut request.permits));
            drop(permits);
        }
    }

    fn has_request_state(&self) -> bool {
        self.has_request_state.load(Ordering::Relaxed)
    }

    fn change<T>(&self, change: impl FnOnce(&mut RequestState) -> T) -> T {
        let mut request = self.lock_request();
        self.has_request_state.store(true, Ordering::Relaxed);
        change(request.get_or_insert_default())
    }

    fn read<T: Default>(&self, read: impl FnOnce(&RequestState) -> T) -> T {
        if !self.has_request_state() {
            return T::default();
        }
        self.lock_request().as_deref().map(read).unwrap_or_default()
    }

    fn lock_request(&self) -> MutexGuard<'_, Option<Box<RequestState>>> {
        let locked = self.request.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the client as gone: the connection broke, or was closed whole.
    pub fn mark_disconnected(&self) {
        self.is_disconnected.store(true, Ordering::Relaxed);
    }

    /// Sets the client of the current request. A proxy that names no client stands for many.
    pub(crate) fn set_address_prefix(&self, prefix: AddressPrefix, is_proxy: bool) {
        self.address_prefix
            .store(prefix.to_bits(), Ordering::Relaxed);
        self.is_unnamed_proxy.store(is_proxy, Ordering::Relaxed);
    }

    /// The prefix that limits per client count the current request by. `None` for requests of a
    /// trusted proxy that names no client: they are of many clients.
    #[must_use]
    pub fn counted_address_prefix(&self) -> Option<AddressPrefix> {
        (!self.is_unnamed_proxy.load(Ordering::Relaxed)).then(|| self.address_prefix())
    }

    fn address_prefix(&self) -> AddressPrefix {
        AddressPrefix::from_bits(self.address_prefix.load(Ordering::Relaxed))
    }

    /// Whether the client left. One that only closed its sending side has not.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.is_disconnected.load(Ordering::Relaxed)
    }

    /// Awaits `work`, unless the client leaves. For futures that edge polls: it polls once more
    /// when the client has left.
    pub async fn run_while_connected<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.is_disconnected() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Queues an interim response (103, or another 1xx that is passed on); `false` when too many
    /// wait already.
    pub fn push_interim(&self, status: Status, fields: FieldBlock) -> bool {
        let mut interim = self.interim.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = interim
            .iter()
            .map(|(_, fields)| interim_bytes(fields))
            .sum::<usize>();
        if waiting + interim_bytes(&fields) > MAX_INTERIM_BYTES {
            return false;
        }
        interim.push((status, fields));
        self.has_interim.store(true, Ordering::Relaxed);
        true
    }

    /// Takes the interim responses to be sent now; usually none, which is free.
    #[must_use]
    pub fn take_interim(&self) -> Vec<(Status, FieldBlock)> {
        if !self.has_interim.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.has_interim.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.interim.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The bytes of an interim response, with a status line.
fn interim_bytes(fields: &FieldBlock) -> usize {
    fields.as_bytes().len() + 32
}
