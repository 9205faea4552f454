//! A running event loop: polls tasks, then asks the kernel for events, again and again.
//!
//! [`super::block_on`] runs one on its thread. Everything that a loop consists of belongs to its
//! thread, so nothing here is locked; other threads post messages (`mailbox`).
//!
//! # Invariants
//! - Nothing is mutably borrowed while a future is polled or dropped, or a waker called or dropped,
//!   since these may call back into this module.
//! - Tasks that wake each other delay kernel events for at most [`MAX_POLLS_PER_TURN`] polls.
//! - A panic ends only the task that panicked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use penstock_sys::poll::{self, Event, Interest};
use penstock_sys::timer;

use super::fd_table::{FdTable, IoDirection};
use super::mailbox::{LoopMessage, Mailbox};
use super::slots::SlotKey;
use super::tasks::{MAIN_TASK, TaskFuture, TaskHeader, TaskTable};
use super::timers::{TimerKey, Timers};

/// Polls in a row before the kernel is asked for events.
const MAX_POLLS_PER_TURN: u32 = 64;

/// Message capacity that a loop keeps. Its two lists are swapped: without a bound, alternating
/// bursts would let both grow to the largest.
pub(super) const MAX_KEPT_MESSAGES: usize = 1024;

/// How often a task finds a descriptor ready in one poll before others have their turn: a
/// descriptor that is always ready, such as a fast sender's, would occupy the loop.
const TASK_BUDGET: u32 = 128;

thread_local! {
    static CURRENT_LOOP: CurrentLoop = const { CurrentLoop::new() };
}

/// The loop of a thread, if it has one.
struct CurrentLoop {
    /// Its mailbox's id; 0 where no loop runs.
    mailbox_id: Cell<u32>,
    /// How often the task being polled may still find a descriptor ready.
    task_budget: Cell<u32>,
    /// Counts the times that the kernel was asked for events.
    turn: Cell<u64>,
    run_queue: RefCell<VecDeque<SlotKey>>,
    /// Tasks that yielded to all others.
    deferred: RefCell<Vec<Waker>>,
    tasks: RefCell<TaskTable>,
    fds: RefCell<FdTable>,
    timers: RefCell<Timers>,
    resources: RefCell<Option<LoopResources>>,
}

/// A loop's kernel objects and its mailbox.
#[derive(Debug)]
pub(super) struct LoopResources {
    /// Becomes readable when the nearest timer is due.
    timer_fd: OwnedFd,
    pub(super) mailbox: Arc<Mailbox>,
}

impl LoopResources {
    pub(super) fn new() -> io::Result<Self> {
        let (alarm, mail) = (timer::create()?, Mailbox::new()?);
        let (set, read) = (mail.epoll_fd().as_fd(), Interest::Read);
        poll::add(set, alarm.as_fd(), TIMER_TOKEN, read)?;
        poll::add(set, mail.wake_fd().as_fd(), WAKE_TOKEN, read)?;
        Ok(Self {
            timer_fd: alarm,
            mailbox: Arc::new(mail),
        })
    }
}

/// Tokens outside the range of task descriptors.
const WAKE_TOKEN: u64 = u64::MAX;
const TIMER_TOKEN: u64 = u64::MAX - 1;

impl CurrentLoop {
    const fn new() -> Self {
        Self {
            mailbox_id: Cell::new(0),
            task_budget: Cell::new(0),
            turn: Cell::new(0),
            run_queue: RefCell::new(VecDeque::new()),
            deferred: RefCell::new(Vec::new()),
            tasks: RefCell::new(TaskTable::new()),
            fds: RefCell::new(FdTable::new()),
            timers: RefCell::new(Timers::new()),
            resources: RefCell::new(None),
        }
    }

    fn mailbox(&self) -> Option<Arc<Mailbox>> {
        let kernel = self.resources.borrow();
        kernel.as_ref().map(|kernel| Arc::clone(&kernel.mailbox))
    }

    fn spawn(&self, work: TaskFuture, mail: &Arc<Mailbox>) {
        let key = self.tasks.borrow_mut().add(work, mail);
        self.run_queue.borrow_mut().push_back(key);
    }

    /// Polls scheduled tasks. Returns the output of the main future once it is done.
    fn run_tasks<F: Future>(
        &self,
        main: &mut MainFuture<'_, F>,
        mail: &Arc<Mailbox>,
        messages: &mut Vec<LoopMessage>,
    ) -> Option<F::Output> {
        let mut left = MAX_POLLS_PER_TURN;
        loop {
            mail.take_messages(messages);
            for message in messages.drain(..) {
                self.handle_message(message, mail);
            }
            messages.shrink_to(MAX_KEPT_MESSAGES);
            loop {
                let next = self.run_queue.borrow_mut().pop_front();
                let Some(key) = next else { break };
                self.task_budget.set(TASK_BUDGET);
                if key == MAIN_TASK {
                    if let Poll::Ready(output) = main.poll() {
                        return Some(output);
                    }
                } else {
                    self.run_task(key);
                }
                left -= 1;
                if left == 0 {
                    return None;
                }
            }
            if !mail.has_messages() {
                return None;
            }
        }
    }

    fn run_task(&self, key: SlotKey) {
        let taken = self.tasks.borrow_mut().take(key);
        let Some(mut task) = taken else { return };
        task.mark_polled();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            task.future
                .as_mut()
                .poll(&mut Context::from_waker(&task.waker))
        }));
        match polled {
            Ok(Poll::Pending) => self.tasks.borrow_mut().put_back(key, task),
            Ok(Poll::Ready(())) | Err(_) => {
                drop_ignoring_panic(task);
                self.tasks.borrow_mut().release(key);
            }
        }
    }

    fn handle_message(&self, message: LoopMessage, mail: &Arc<Mailbox>) {
        match message {
            LoopMessage::Wake(head) => head.handle_wake(),
            LoopMessage::Spawn(work) => self.spawn(work, mail),
            LoopMessage::RemoveFd(token) => {
                let kept = self.fds.borrow_mut().remove(token);
                drop(kept);
            }
            LoopMessage::DisarmTimer(key) => {
                let kept = self.timers.borrow_mut().disarm(key);
                drop(kept);
            }
        }
    }

    /// Asks the kernel for events and wakes the tasks that waited for them; waits if the loop is
    /// idle.
    fn poll_kernel(&self, kernel: &LoopResources, events: &mut Vec<Event>) {
        let unset = self.timers.borrow_mut().take_time_to_arm();
        if let Some(at) = unset {
            let after = whole_milliseconds(at.saturating_duration_since(Instant::now()));
            // Fails only for a descriptor that is not a timer.
            let _ = timer::set(kernel.timer_fd.as_fd(), after);
        }
        self.turn.set(self.turn.get() + 1);
        events.clear();
        let set = kernel.mailbox.epoll_fd().as_fd();
        let is_idle = self.run_queue.borrow().is_empty() && self.deferred.borrow().is_empty();
        // Fails only for a descriptor that is not an epoll set. A loop that could not wait would
        // spin, as it would if it panicked.
        let _ = match is_idle && kernel.mailbox.try_sleep() {
            true => {
                let waited = poll::wait_for_events(set, events);
                kernel.mailbox.set_awake();
                waited
            }
            false => poll::take_events(set, events),
        };
        for event in events.iter() {
            match event.token {
                // Messages are taken at each iteration anyway.
                WAKE_TOKEN => {}
                TIMER_TOKEN => {
                    let due = self.timers.borrow_mut().fire(Instant::now());
                    due.into_iter().for_each(Waker::wake);
                }
                _ => self.dispatch_event(event),
            }
        }
        if !self.deferred.borrow().is_empty() {
            let mut deferred = self.deferred.take();
            deferred.drain(..).for_each(Waker::wake);
            // Keeps the allocation for frequent yields.
            let meanwhile = self.deferred.replace(deferred);
            self.deferred.borrow_mut().extend(meanwhile);
        }
    }

    fn dispatch_event(&self, event: &Event) {
        let [reads, writes] = self.fds.borrow_mut().apply_event(event);
        for (side, waker) in [(IoDirection::Read, reads), (IoDirection::Write, writes)] {
            let Some(waker) = waker else { continue };
            waker.wake_by_ref();
            let token = SlotKey::from_u64(event.token);
            let unwanted = self.fds.borrow_mut().restore_waker(token, side, waker);
            drop(unwanted);
        }
    }
}

/// The future that a thread runs its loop for.
struct MainFuture<'f, F> {
    future: Pin<&'f mut F>,
    header: Arc<TaskHeader>,
    waker: Waker,
}

impl<F: Future> MainFuture<'_, F> {
    fn poll(&mut self) -> Poll<F::Output> {
        self.header.mark_polled();
        self.future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker))
    }
}

/// Runs a loop on this thread until `main` is done; other tasks are dropped then.
///
/// # Panics
/// When the thread runs one already, or when `main` does.
pub(super) fn run<F: Future>(kernel: LoopResources, main: F) -> F::Output {
    CURRENT_LOOP.with(|here| {
        assert_eq!(here.mailbox_id.get(), 0, "a loop within a loop");
        let mail = Arc::clone(&kernel.mailbox);
        here.mailbox_id.set(mail.id());
        *here.resources.borrow_mut() = Some(kernel);
        let _ending = LoopCleanup(here);
        let head = TaskHeader::main(&mail);
        let mut main = MainFuture {
            future: pin!(main),
            waker: Waker::from(Arc::clone(&head)),
            header: head,
        };
        here.run_queue.borrow_mut().push_back(MAIN_TASK);
        let mut messages = Vec::new();
        let mut events = Vec::with_capacity(poll::MAX_EVENTS);
        loop {
            if let Some(output) = here.run_tasks(&mut main, &mail, &mut messages) {
                return output;
            }
            let kernel = here.resources.borrow();
            if let Some(kernel) = &*kernel {
                here.poll_kernel(kernel, &mut events);
            }
        }
    })
}

/// Ends a thread's loop, also when its main future panicked.
struct LoopCleanup<'h>(&'h CurrentLoop);

impl Drop for LoopCleanup<'_> {
    fn drop(&mut self) {
        let here = self.0;
        for message in here.mailbox().map(|mail| mail.close()).unwrap_or_default() {
            drop_ignoring_panic(message);
        }
        // Dropping a task may start another: that is dropped too.
        loop {
            let tasks = here.tasks.borrow_mut().drain();
            if tasks.is_empty() {
                break;
            }
            tasks.into_iter().for_each(drop_ignoring_panic);
        }
        here.mailbox_id.set(0);
        here.run_queue.borrow_mut().clear();
        let wakers = (here.deferred.take(), here.timers.borrow_mut().drain());
        drop(wakers);
        drop(here.fds.replace(FdTable::new()));
        drop(here.resources.take());
    }
}

/// Drops a value that holds a future, ignoring a panic of it.
fn drop_ignoring_panic<T>(holds: T) {
    // The panic hook has logged it already.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holds)));
}

/// Rounds up, so that timers close to each other fire together, at most a thousand times a second.
fn whole_milliseconds(after: Duration) -> Duration {
    let part = after.subsec_nanos() % 1_000_000;
    match part {
        0 => after,
        _ => after + Duration::from_nanos(u64::from(1_000_000 - part)),
    }
}

/// Whether the loop of `mail` is this thread's.
pub(super) fn is_current_loop(mail: &Mailbox) -> bool {
    with_loop_of(mail, |_| ()).is_some()
}

/// Runs `work` with the loop of `mail`, if it is this thread's. An ending thread has no loop any
/// more.
fn with_loop_of<T>(mail: &Mailbox, work: impl FnOnce(&CurrentLoop) -> T) -> Option<T> {
    let done =
        CURRENT_LOOP.try_with(|here| (here.mailbox_id.get() == mail.id()).then(|| work(here)));
    done.ok().flatten()
}

pub(super) fn schedule_task(key: SlotKey) {
    let _ = CURRENT_LOOP.try_with(|here| here.run_queue.borrow_mut().push_back(key));
}

/// The mailbox of this thread's loop, if it has one.
pub(super) fn current_mailbox() -> Option<Arc<Mailbox>> {
    CURRENT_LOOP.try_with(CurrentLoop::mailbox).ok()?
}

/// Starts a task on this thread's loop; returns it where there is none.
pub(super) fn spawn(work: TaskFuture) -> Result<(), TaskFuture> {
    CURRENT_LOOP.with(|here| match here.mailbox() {
        Some(mail) => {
            here.spawn(work, &mail);
            Ok(())
        }
        None => Err(work),
    })
}

/// The loop's turn: it changes when everything that was ready has had its chance.
pub(super) fn current_turn() -> u64 {
    CURRENT_LOOP.with(|here| here.turn.get())
}

/// Takes `cost` from the budget of the task being polled.
pub(super) fn charge_task(cost: u32) {
    CURRENT_LOOP.with(|here| {
        let left = here.task_budget.get().saturating_sub(cost);
        here.task_budget.set(left);
    });
}

/// Wakes `waker` after everything else that is ready has run; at once where no loop runs.
pub(super) fn defer_wake(waker: &Waker) {
    CURRENT_LOOP.with(|here| match here.mailbox_id.get() {
        0 => waker.wake_by_ref(),
        _ => here.deferred.borrow_mut().push(waker.clone()),
    });
}

#[derive(Debug)]
pub(crate) struct Registration {
    mailbox: Arc<Mailbox>,
    token: SlotKey,
}

impl Registration {
    /// Registers `fd` with this thread's loop. The owner keeps it open while the registration
    /// exists.
    ///
    /// # Errors
    /// When the kernel refuses it, or no loop runs here.
    pub(crate) fn new(fd: &impl AsFd, interest: Interest) -> io::Result<Self> {
        CURRENT_LOOP.with(|here| {
            let kernel = here.resources.borrow();
            let kernel = kernel.as_ref().ok_or_else(no_loop_error)?;
            let token = here.fds.borrow_mut().add();
            let registration = Self {
                mailbox: Arc::clone(&kernel.mailbox),
                token,
            };
            let set = kernel.mailbox.epoll_fd().as_fd();
            poll::add(set, fd.as_fd(), token.to_u64(), interest)?;
            Ok(registration)
        })
    }

    pub(crate) fn is_on_current_loop(&self) -> bool {
        is_current_loop(&self.mailbox)
    }

    /// Ready once the kernel has reported readiness, until [`Registration::clear_readiness`].
    ///
    /// # Errors
    /// On any other loop than the one of the registration.
    pub(crate) fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        side: IoDirection,
    ) -> Poll<io::Result<()>> {
        CURRENT_LOOP.with(|here| {
            if here.mailbox_id.get() != self.mailbox.id() {
                return Poll::Ready(Err(io::Error::other("a descriptor of another event loop")));
            }
            let mut sources = here.fds.borrow_mut();
            if !sources.is_ready(self.token, side) {
                let before = sources.set_waker(self.token, side, cx.waker());
                drop(sources);
                drop(before);
                return Poll::Pending;
            }
            match here.task_budget.get().checked_sub(1) {
                Some(left) => {
                    here.task_budget.set(left);
                    Poll::Ready(Ok(()))
                }
                None => {
                    here.deferred.borrow_mut().push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    /// Whether readiness has been reported; `None` on another loop.
    pub(crate) fn is_ready(&self, side: IoDirection) -> Option<bool> {
        self.query(|sources| sources.is_ready(self.token, side))
    }

    /// Whether the peer's end has been reported; `None` on another loop.
    pub(crate) fn is_ended(&self, side: IoDirection) -> Option<bool> {
        self.query(|sources| sources.is_ended(self.token, side))
    }

    fn query(&self, ask: impl FnOnce(&FdTable) -> bool) -> Option<bool> {
        with_loop_of(&self.mailbox, |here| ask(&here.fds.borrow()))
    }

    /// Sets whether the end of the readable side makes every poll ready: not while a task waits for
    /// the connection to break.
    pub(crate) fn set_end_reporting(&self, is_told: bool) {
        CURRENT_LOOP.with(|here| {
            if here.mailbox_id.get() == self.mailbox.id() {
                here.fds.borrow_mut().set_end_reporting(self.token, is_told);
            }
        });
    }

    /// Clears the readiness once it has been used up: the next edge reports more.
    pub(crate) fn clear_readiness(&self, side: IoDirection) {
        CURRENT_LOOP.with(|here| {
            if here.mailbox_id.get() == self.mailbox.id() {
                here.fds.borrow_mut().clear_readiness(self.token, side);
            }
        });
    }

    /// Removes `fd`, which must be the registered one, from the loop's epoll set, before it is
    /// closed or registered elsewhere. Works on any thread.
    pub(crate) fn remove(&self, fd: &impl AsFd) {
        // It was added, and is open.
        let removed = poll::remove(self.mailbox.epoll_fd().as_fd(), fd.as_fd());
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let kept = with_loop_of(&self.mailbox, |here| {
            here.fds.borrow_mut().remove(self.token)
        });
        if kept.is_none() {
            self.mailbox
                .post_without_wake(LoopMessage::RemoveFd(self.token));
        }
    }
}

/// A timer of this thread's loop. It stays after firing until it is dropped.
#[derive(Debug)]
pub(crate) struct Timer {
    mailbox: Arc<Mailbox>,
    key: TimerKey,
}

impl Timer {
    /// Wakes `waker` at `at` or soon after.
    ///
    /// # Panics
    /// Outside of a loop: it could never fire.
    pub(crate) fn new(at: Instant, waker: &Waker) -> Self {
        CURRENT_LOOP.with(|here| {
            let home = here.mailbox().expect("timers are armed on loops");
            let key = here.timers.borrow_mut().arm(at, waker.clone());
            Self { mailbox: home, key }
        })
    }

    pub(crate) fn fires_at(&self) -> Instant {
        self.key.at
    }

    /// Replaces the waker; `false` when the timer has fired or belongs to another loop.
    pub(crate) fn set_waker(&self, waker: &Waker) -> bool {
        CURRENT_LOOP.with(|here| {
            if here.mailbox_id.get() != self.mailbox.id() {
                return false;
            }
            let turned = here.timers.borrow_mut().set_waker(self.key, waker);
            turned.map(drop).is_ok()
        })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let kept = with_loop_of(&self.mailbox, |here| {
            here.timers.borrow_mut().disarm(self.key)
        });
        if kept.is_none() {
            self.mailbox
                .post_without_wake(LoopMessage::DisarmTimer(self.key));
        }
    }
}

/// Number of descriptor entries of this thread's loop, in use or free.
#[cfg(test)]
pub(super) fn fd_entry_count() -> usize {
    CURRENT_LOOP.with(|here| here.fds.borrow().entry_count())
}

fn no_loop_error() -> io::Error {
    io::Error::other("not called on an event loop")
}
