//! Connections that a member has opened and that carry no request yet.
//!
//! `listener` adds them; [`crate::connection::ResolvedAddress::connect`] takes them, on any loop.
//!
//! # Invariants
//!
//! - A task that finds no connection requests one and is woken by the next that arrives. If another
//!   task took it, it requests again.
//! - Once no more connections can arrive, no task waits for one.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;

use parking_lot::Mutex;
use penstock_runtime::{DetachedStream, Stream};
use tokio::sync::Notify;

use super::INITIAL_CONNECTIONS;

/// The idle connections of one member and the demand for more.
#[derive(Debug)]
pub(crate) struct JoinedConnections {
    /// Held only briefly.
    state: Mutex<JoinedConnectionsState>,
    available: Notify,
    demand_changed: Notify,
}

#[derive(Debug)]
struct JoinedConnectionsState {
    idle: VecDeque<DetachedStream>,
    waiter_count: u32,
    /// Connections still to be requested.
    wanted: u32,
    /// The limit of active requests that the member announced.
    max_active: u32,
    supply: SupplyState,
}

/// Whether more connections will arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SupplyState {
    /// As many as are requested.
    OnRequest,
    /// Only for tasks that wait already: the member is leaving.
    ForWaiters,
    /// No more: the member has another front end now.
    Ended,
    Left,
}

/// Maximum idle connections: no member has so many active requests that none is released.
const MAX_IDLE: u32 = 1024;

impl JoinedConnections {
    /// Creates the pool of a member with that limit; the first connections are requested at
    /// once.
    pub(super) fn new(max_active: u32) -> Self {
        let state = JoinedConnectionsState {
            idle: VecDeque::new(),
            waiter_count: 0,
            wanted: INITIAL_CONNECTIONS.min(max_active),
            max_active,
            supply: SupplyState::OnRequest,
        };
        Self {
            state: Mutex::new(state),
            available: Notify::new(),
            demand_changed: Notify::new(),
        }
    }

    pub(super) fn set_max_active(&self, max_active: u32) {
        self.state.lock().max_active = max_active;
    }

    /// The limit of active requests, with `open` connections counted as the member's: as announced,
    /// but once no more connections arrive, at most one request per connection.
    pub(super) fn max_active(&self, open: u32) -> u32 {
        let state = self.state.lock();
        if state.supply != SupplyState::Ended {
            return state.max_active;
        }
        // A waiting task has no connection, though it is counted.
        let had = open.saturating_sub(state.waiter_count);
        let there = u32::try_from(state.idle.len()).unwrap_or(u32::MAX);
        state.max_active.min(had.saturating_add(there))
    }

    /// Whether no more connections arrive.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.state.lock().supply == SupplyState::Ended
    }

    /// Takes a connection on this loop; waits until one is available. The caller bounds the wait.
    ///
    /// # Errors
    /// No more connections arrive, or descriptors ran out.
    pub(crate) async fn acquire(&self) -> io::Result<Stream> {
        let _taker = WaiterGuard::new(self);
        loop {
            let mut come = pin!(self.available.notified());
            come.as_mut().enable();
            if let Some(connection) = self.pop_or_request()? {
                let stream = connection.attach()?;
                // It may have waited for long.
                if stream.is_open() {
                    return Ok(stream);
                }
                continue;
            }
            self.demand_changed.notify_one();
            come.await;
        }
    }

    /// Takes an idle connection, or requests one more.
    fn pop_or_request(&self) -> io::Result<Option<DetachedStream>> {
        let gone = |why| Err(io::Error::new(io::ErrorKind::NotConnected, why));
        let mut state = self.state.lock();
        if state.supply == SupplyState::Left {
            return gone("the server has left");
        }
        if let Some(connection) = state.idle.pop_back() {
            return Ok(Some(connection));
        }
        if state.supply == SupplyState::Ended {
            return gone("the server sends no more connections");
        }
        state.wanted = (state.wanted + 1).min(state.waiter_count + INITIAL_CONNECTIONS);
        Ok(None)
    }

    /// How many connections to request; waits until it is at least one. Cancel safety: no demand is
    /// lost.
    pub(super) async fn wait_for_connection_demand(&self) -> u32 {
        loop {
            let wanted = std::mem::take(&mut self.state.lock().wanted);
            if wanted > 0 {
                return wanted;
            }
            self.demand_changed.notified().await;
        }
    }

    /// Adds a connection; returns it if there are too many. A connection that no task needs while
    /// the member leaves is closed.
    pub(super) fn offer_connection(
        &self,
        connection: DetachedStream,
    ) -> Result<(), DetachedStream> {
        let mut state = self.state.lock();
        let (most, is_leaving) = match state.supply {
            SupplyState::OnRequest | SupplyState::Ended => (state.max_active.min(MAX_IDLE), false),
            SupplyState::ForWaiters => (state.waiter_count, true),
            SupplyState::Left => (0, true),
        };
        match state.idle.len() < most as usize {
            true => state.idle.push_back(connection),
            false if is_leaving => return Ok(()),
            false => return Err(connection),
        }
        drop(state);
        self.available.notify_one();
        Ok(())
    }

    /// The member leaves: closes idle connections; more arrive only for waiting tasks.
    pub(super) fn close_idle(&self) {
        let mut state = self.state.lock();
        if state.supply == SupplyState::OnRequest {
            state.supply = SupplyState::ForWaiters;
        }
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    /// No more connections arrive. Call [`JoinedConnections::wake_waiters`] after the follow-up
    /// work.
    pub(super) fn mark_exhausted(&self) {
        let mut state = self.state.lock();
        if state.supply != SupplyState::Left {
            state.supply = SupplyState::Ended;
        }
    }

    /// Wakes all waiting tasks to check again.
    pub(super) fn wake_waiters(&self) {
        self.available.notify_waiters();
    }

    /// The member has left: waiting tasks fail.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.supply = SupplyState::Left;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
        self.wake_waiters();
    }
}

struct WaiterGuard<'d>(&'d JoinedConnections);

impl<'d> WaiterGuard<'d> {
    fn new(connections: &'d JoinedConnections) -> Self {
        connections.state.lock().waiter_count += 1;
        Self(connections)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiter_count -= 1;
    }
}
