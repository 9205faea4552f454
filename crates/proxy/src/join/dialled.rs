//! Connections that a member has dialled in with and that no request has had yet.
//!
//! `front` puts them here, [`crate::connection::Address::connect`] takes them, on any loop. What must stay true: who finds none
//! asks for one, and is woken by the next that comes, unless another was quicker, and then it asks again; where none
//! can come any more nobody waits for one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_runtime::Stream;
use tokio::sync::Notify;

use super::FIRST;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// Held for a look.
    state: Mutex<State>,
    come: Notify,
    asked: Notify,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<OwnedFd>,
    /// Who waits for one.
    takers: u32,
    /// To be asked for.
    wanted: u32,
    /// What the member says that it may have in progress.
    capacity: u32,
    until: Until,
}

/// How long connections come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// As long as they are asked for.
    Asked,
    /// As long as somebody waits for one: the member leaves.
    Wanted,
    /// None comes any more: who dials meets another front end.
    Last,
    /// The member has left.
    Left,
}

/// Connections that wait for a request, at most: no member has so many in progress that none is given back.
const WAITING_MAX: u32 = 1024;

impl Dialled {
    /// Of a member with that capacity; the first are asked for at once.
    pub(super) fn new(capacity: u32) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            takers: 0,
            wanted: FIRST.min(capacity),
            capacity,
            until: Until::Asked,
        };
        Self {
            state: Mutex::new(state),
            come: Notify::new(),
            asked: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
        if state.until != Until::Last {
            return state.capacity;
        }
        // Who waits for one has none, though it is counted.
        let had = open.saturating_sub(state.takers);
        let there = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
        state.capacity.min(had.saturating_add(there))
    }

    /// Whether none comes any more.
    pub(crate) fn is_last(&self) -> bool {
        self.lock().until == Until::Last
    }

    /// Takes one, on this loop; waits until it is there. The caller bounds the wait.
    ///
    /// # Errors
    /// None comes any more, or descriptors ran out.
    pub(crate) async fn take(&self) -> io::Result<Stream> {
        let _taker = Taker::new(self);
        loop {
            let mut come = pin!(self.come.notified());
            come.as_mut().enable();
            if let Some(socket) = self.pop()? {
                let stream = Stream::new(socket)?;
                // It may have waited for long.
                if stream.is_open() {
                    return Ok(stream);
                }
                continue;
            }
            self.asked.notify_one();
            come.await;
        }
    }

    /// One that waits here, or one more is asked for.
    fn pop(&self) -> io::Result<Option<OwnedFd>> {
        let gone = |why| Err(io::Error::new(io::ErrorKind::NotConnected, why));
        let mut state = self.lock();
        if state.until == Until::Left {
            return gone("the server has left");
        }
        if let Some(socket) = state.waiting.pop_back() {
            return Ok(Some(socket));
        }
        if state.until == Until::Last {
            return gone("the server brings no more connections here");
        }
        state.wanted = (state.wanted + 1).min(state.takers + FIRST);
        Ok(None)
    }

    /// How many are to be asked for; waits until there is one. Cancel safety: none is lost.
    pub(super) async fn asked(&self) -> u32 {
        loop {
            let wanted = std::mem::take(&mut self.lock().wanted);
            if wanted > 0 {
                return wanted;
            }
            self.asked.notified().await;
        }
    }

    /// Puts one here, registered with no loop; gives it back where it is one too many. One that was asked for and that
    /// nobody wants any more, as the member leaves, is closed.
    pub(super) fn put(&self, socket: OwnedFd) -> Result<(), OwnedFd> {
        {
            let mut state = self.lock();
            let (most, leaves) = match state.until {
                Until::Asked | Until::Last => (state.capacity.min(WAITING_MAX), false),
                Until::Wanted => (state.takers, true),
                Until::Left => (0, true),
            };
            match state.waiting.len() < most as usize {
                true => state.waiting.push_back(socket),
                false if leaves => return Ok(()),
                false => return Err(socket),
            }
        }
        self.come.notify_one();
        Ok(())
    }

    /// The member leaves: those that wait are closed, and more come only for who waits for one.
    pub(super) fn close_waiting(&self) {
        let waiting = {
            let mut state = self.lock();
            if state.until == Until::Asked {
                state.until = Until::Wanted;
            }
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    /// None comes any more. Call [`Dialled::wake`] once what follows from it is done.
    pub(super) fn set_last(&self) {
        let mut state = self.lock();
        if state.until != Until::Left {
            state.until = Until::Last;
        }
    }

    /// Has all who wait look again.
    pub(super) fn wake(&self) {
        self.come.notify_waiters();
    }

    /// The member has left: who waits is told.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.until = Until::Left;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.wake();
    }
}

/// Counts one who waits.
struct Taker<'d>(&'d Dialled);

impl<'d> Taker<'d> {
    fn new(dialled: &'d Dialled) -> Self {
        dialled.lock().takers += 1;
        Self(dialled)
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.lock().takers -= 1;
    }
}
