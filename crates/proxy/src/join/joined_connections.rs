//! Connections that a member has dialled in with and that no request has had yet.
//!
//! `front` puts them here, [`crate::connection::ResolvedAddress::connect`] takes them, on any loop. What must stay true: who finds none
//! asks for one, and is woken by the next that comes, unless another was quicker, and then it asks again; where none
//! can come any more nobody waits for one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_runtime::Stream;
use tokio::sync::Notify;

use super::INITIAL_CONNECTIONS;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct JoinedConnections {
    /// Held for a look.
    state: Mutex<JoinedConnectionsState>,
    available: Notify,
    demand_changed: Notify,
}

#[derive(Debug)]
struct JoinedConnectionsState {
    idle: VecDeque<OwnedFd>,
    /// Who waits for one.
    waiter_count: u32,
    /// To be asked for.
    wanted: u32,
    /// What the member says that it may have in progress.
    capacity: u32,
    supply: SupplyState,
}

/// How long connections come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SupplyState {
    /// As long as they are asked for.
    OnRequest,
    /// As long as somebody waits for one: the member leaves.
    ForWaiters,
    /// None comes any more: who dials meets another front end.
    Ended,
    /// The member has left.
    Left,
}

/// Connections that wait for a request, at most: no member has so many in progress that none is given back.
const MAX_IDLE: u32 = 1024;

impl JoinedConnections {
    /// Of a member with that capacity; the first are asked for at once.
    pub(super) fn new(capacity: u32) -> Self {
        let state = JoinedConnectionsState {
            idle: VecDeque::new(),
            waiter_count: 0,
            wanted: INITIAL_CONNECTIONS.min(capacity),
            capacity,
            supply: SupplyState::OnRequest,
        };
        Self {
            state: Mutex::new(state),
            available: Notify::new(),
            demand_changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, JoinedConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member has another capacity.
    pub(super) fn set_capacity(&self, capacity: u32) {
        self.lock().capacity = capacity;
    }

    /// How many requests it may have with `open` connections counted as its own: as many as the member says, but where none
    /// comes any more no more than can have one.
    pub(super) fn capacity(&self, open: u32) -> u32 {
        let state = self.lock();
        if state.supply != SupplyState::Ended {
            return state.capacity;
        }
        // Who waits for one has none, though it is counted.
        let had = open.saturating_sub(state.waiter_count);
        let there = u32::try_from(state.idle.len()).unwrap_or(u32::MAX);
        state.capacity.min(had.saturating_add(there))
    }

    /// Whether none comes any more.
    pub(crate) fn has_supply_ended(&self) -> bool {
        self.lock().supply == SupplyState::Ended
    }

    /// Takes one, on this loop; waits until it is there. The caller bounds the wait.
    ///
    /// # Errors
    /// None comes any more, or descriptors ran out.
    pub(crate) async fn acquire(&self) -> io::Result<Stream> {
        let _taker = WaiterGuard::new(self);
        loop {
            let mut come = pin!(self.available.notified());
            come.as_mut().enable();
            if let Some(socket) = self.pop_or_request()? {
                let stream = Stream::new(socket)?;
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

    /// One that waits here, or one more is asked for.
    fn pop_or_request(&self) -> io::Result<Option<OwnedFd>> {
        let gone = |why| Err(io::Error::new(io::ErrorKind::NotConnected, why));
        let mut state = self.lock();
        if state.supply == SupplyState::Left {
            return gone("the server has left");
        }
        if let Some(socket) = state.idle.pop_back() {
            return Ok(Some(socket));
        }
        if state.supply == SupplyState::Ended {
            return gone("the server brings no more connections here");
        }
        state.wanted = (state.wanted + 1).min(state.waiter_count + INITIAL_CONNECTIONS);
        Ok(None)
    }

    /// How many are to be asked for; waits until there is one. Cancel safety: none is lost.
    pub(super) async fn wait_for_demand(&self) -> u32 {
        loop {
            let wanted = std::mem::take(&mut self.lock().wanted);
            if wanted > 0 {
                return wanted;
            }
            self.demand_changed.notified().await;
        }
    }

    /// Puts one here, registered with no loop; gives it back where it is one too many. One that was asked for and that
    /// nobody wants any more, as the member leaves, is closed.
    pub(super) fn offer(&self, socket: OwnedFd) -> Result<(), OwnedFd> {
        {
            let mut state = self.lock();
            let (most, leaves) = match state.supply {
                SupplyState::OnRequest | SupplyState::Ended => {
                    (state.capacity.min(MAX_IDLE), false)
                }
                SupplyState::ForWaiters => (state.waiter_count, true),
                SupplyState::Left => (0, true),
            };
            match state.idle.len() < most as usize {
                true => state.idle.push_back(socket),
                false if leaves => return Ok(()),
                false => return Err(socket),
            }
        }
        self.available.notify_one();
        Ok(())
    }

    /// The member leaves: those that wait are closed, and more come only for who waits for one.
    pub(super) fn close_idle(&self) {
        let waiting = {
            let mut state = self.lock();
            if state.supply == SupplyState::OnRequest {
                state.supply = SupplyState::ForWaiters;
            }
            std::mem::take(&mut state.idle)
        };
        drop(waiting);
    }

    /// None comes any more. Call [`JoinedConnections::wake_waiters`] once what follows from it is done.
    pub(super) fn end_supply(&self) {
        let mut state = self.lock();
        if state.supply != SupplyState::Left {
            state.supply = SupplyState::Ended;
        }
    }

    /// Has all who wait look again.
    pub(super) fn wake_waiters(&self) {
        self.available.notify_waiters();
    }

    /// The member has left: who waits is told.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.supply = SupplyState::Left;
            std::mem::take(&mut state.idle)
        };
        drop(waiting);
        self.wake_waiters();
    }
}

/// Counts one who waits.
struct WaiterGuard<'d>(&'d JoinedConnections);

impl<'d> WaiterGuard<'d> {
    fn new(dialled: &'d JoinedConnections) -> Self {
        dialled.lock().waiter_count += 1;
        Self(dialled)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().waiter_count -= 1;
    }
}
