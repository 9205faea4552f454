//! A loop at work: tasks are polled, then the kernel is asked what happened, again and again.
//!
//! [`super::block_on`] runs one on its thread. All that a loop consists of is its thread's own, so that nothing
//! in here is locked; other threads leave letters (`mail`). What must stay true: nothing is borrowed for
//! a change while a future is polled or dropped, or a waker called or dropped, since these may come back here; tasks that
//! wake each other keep the kernel's news waiting for no more than [`TURN_TASKS`] polls; a panic ends the task
//! that panicked and nothing else.

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

use super::mail::{Letter, Mailbox};
use super::sources::{Side, Sources, Token};
use super::tasks::{Head, Key, Tasks, Work};
use super::timers::{TimerKey, Timers};

/// Polls in a row before the kernel is asked what happened meanwhile.
const TURN_TASKS: u32 = 64;

/// Room for letters that a loop keeps. It has two lists of them, which take turns: without a bound one burst
/// after the other would let both grow to the largest.
pub(super) const LETTERS_KEPT: usize = 1024;

/// Times that a task finds a descriptor ready in one poll before the others have their turn: one that is
/// ready each time, a fast sender's, would keep the loop.
const BUDGET: u32 = 128;

thread_local! {
    static HERE: Here = const { Here::new() };
}

/// The loop of a thread, if it has one.
struct Here {
    /// Its mailbox's number; 0 where no loop runs.
    id: Cell<u32>,
    /// What the task that is polled may still find ready.
    budget: Cell<u32>,
    /// Tasks to poll, in order.
    ready: RefCell<VecDeque<Key>>,
    /// Tasks that let everybody else go first.
    deferred: RefCell<Vec<Waker>>,
    tasks: RefCell<Tasks>,
    sources: RefCell<Sources>,
    timers: RefCell<Timers>,
    kernel: RefCell<Option<Kernel>>,
}

/// What a loop has of the kernel and of other threads.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Rings at the nearest timer's moment.
    alarm: OwnedFd,
    pub(super) mail: Arc<Mailbox>,
}

impl Kernel {
    /// # Errors
    /// When descriptors ran out.
    pub(super) fn new() -> io::Result<Self> {
        let (alarm, mail) = (timer::create()?, Mailbox::new()?);
        let (set, read) = (mail.set().as_fd(), Interest::Read);
        poll::add(set, alarm.as_fd(), ALARM, read)?;
        poll::add(set, mail.bell().as_fd(), BELL, read)?;
        Ok(Self {
            alarm,
            mail: Arc::new(mail),
        })
    }
}

/// Tokens that are no descriptor's of a task: their index is that of no place.
const BELL: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

impl Here {
    const fn new() -> Self {
        Self {
            id: Cell::new(0),
            budget: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            deferred: RefCell::new(Vec::new()),
            tasks: RefCell::new(Tasks::new()),
            sources: RefCell::new(Sources::new()),
            timers: RefCell::new(Timers::new()),
            kernel: RefCell::new(None),
        }
    }

    fn mail(&self) -> Option<Arc<Mailbox>> {
        let kernel = self.kernel.borrow();
        kernel.as_ref().map(|kernel| Arc::clone(&kernel.mail))
    }

    fn spawn(&self, work: Work, mail: &Arc<Mailbox>) {
        let key = self.tasks.borrow_mut().add(work, mail);
        self.ready.borrow_mut().push_back(key);
    }

    /// Polls what is scheduled. Gives what the main future came to, if it has.
    fn run_tasks<F: Future>(
        &self,
        main: &mut Main<'_, F>,
        mail: &Arc<Mailbox>,
        letters: &mut Vec<Letter>,
    ) -> Option<F::Output> {
        let mut left = TURN_TASKS;
        loop {
            mail.take(letters);
            for letter in letters.drain(..) {
                self.open(letter, mail);
            }
            letters.shrink_to(LETTERS_KEPT);
            loop {
                let next = self.ready.borrow_mut().pop_front();
                let Some(key) = next else { break };
                self.budget.set(BUDGET);
                if key == Key::MAIN {
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
            if !mail.has_letters() {
                return None;
            }
        }
    }

    fn run_task(&self, key: Key) {
        let taken = self.tasks.borrow_mut().take(key);
        let Some(mut task) = taken else { return };
        task.begin();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            task.work
                .as_mut()
                .poll(&mut Context::from_waker(&task.waker))
        }));
        match polled {
            Ok(Poll::Pending) => self.tasks.borrow_mut().put(key, task),
            Ok(Poll::Ready(())) | Err(_) => {
                dispose(task);
                self.tasks.borrow_mut().end(key);
            }
        }
    }

    fn open(&self, letter: Letter, mail: &Arc<Mailbox>) {
        match letter {
            Letter::Wake(head) => head.open(),
            Letter::Spawn(work) => self.spawn(work, mail),
            Letter::Forget(token) => {
                let kept = self.sources.borrow_mut().remove(token);
                drop(kept);
            }
            Letter::Disarm(key) => {
                let kept = self.timers.borrow_mut().disarm(key);
                drop(kept);
            }
        }
    }

    /// Asks the kernel what happened, and wakes who waited for it; waits for it when there is nothing else to do.
    fn look(&self, kernel: &Kernel, events: &mut Vec<Event>) {
        let unset = self.timers.borrow_mut().take_unset();
        if let Some(at) = unset {
            let after = whole_milliseconds(at.saturating_duration_since(Instant::now()));
            // Refused only of what is no timer.
            let _ = timer::set(kernel.alarm.as_fd(), after);
        }
        events.clear();
        let set = kernel.mail.set().as_fd();
        let is_idle = self.ready.borrow().is_empty() && self.deferred.borrow().is_empty();
        // Refused only of what is no set. A loop that could not wait would spin, as it would if it panicked.
        let _ = match is_idle && kernel.mail.may_sleep() {
            true => {
                let waited = poll::wait_for_events(set, events);
                kernel.mail.awake();
                waited
            }
            false => poll::take_events(set, events),
        };
        for event in events.iter() {
            match event.token {
                // Letters are taken at each turn anyway.
                BELL => {}
                ALARM => {
                    let due = self.timers.borrow_mut().ring(Instant::now());
                    due.into_iter().for_each(Waker::wake);
                }
                _ => self.tell(event),
            }
        }
        if !self.deferred.borrow().is_empty() {
            let mut deferred = self.deferred.take();
            deferred.drain(..).for_each(Waker::wake);
            // Who yields often needs no new room each time.
            let meanwhile = self.deferred.replace(deferred);
            self.deferred.borrow_mut().extend(meanwhile);
        }
    }

    fn tell(&self, event: &Event) {
        let [reads, writes] = self.sources.borrow_mut().happened(event);
        for (side, waker) in [(Side::Read, reads), (Side::Write, writes)] {
            let Some(waker) = waker else { continue };
            waker.wake_by_ref();
            let token = Token::from_u64(event.token);
            let unwanted = self.sources.borrow_mut().keep(token, side, waker);
            drop(unwanted);
        }
    }
}

/// The future that a thread runs its loop for.
struct Main<'f, F> {
    future: Pin<&'f mut F>,
    head: Arc<Head>,
    waker: Waker,
}

impl<F: Future> Main<'_, F> {
    fn poll(&mut self) -> Poll<F::Output> {
        self.head.begin();
        self.future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker))
    }
}

/// Runs a loop on this thread until `main` is done; what else runs on it is dropped then.
///
/// # Panics
/// When the thread runs one already, or when `main` does.
pub(super) fn run<F: Future>(kernel: Kernel, main: F) -> F::Output {
    HERE.with(|here| {
        assert_eq!(here.id.get(), 0, "a loop within a loop");
        let mail = Arc::clone(&kernel.mail);
        here.id.set(mail.id());
        *here.kernel.borrow_mut() = Some(kernel);
        let _ending = Ending(here);
        let head = Head::main(&mail);
        let mut main = Main {
            future: pin!(main),
            waker: Waker::from(Arc::clone(&head)),
            head,
        };
        here.ready.borrow_mut().push_back(Key::MAIN);
        let mut letters = Vec::new();
        let mut events = Vec::with_capacity(poll::MAX_EVENTS);
        loop {
            if let Some(output) = here.run_tasks(&mut main, &mail, &mut letters) {
                return output;
            }
            let kernel = here.kernel.borrow();
            if let Some(kernel) = &*kernel {
                here.look(kernel, &mut events);
            }
        }
    })
}

/// Ends a thread's loop, also when its main future panicked.
struct Ending<'h>(&'h Here);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let here = self.0;
        for letter in here.mail().map(|mail| mail.close()).unwrap_or_default() {
            dispose(letter);
        }
        // What is dropped may begin something new: that is dropped too.
        loop {
            let tasks = here.tasks.borrow_mut().drain();
            if tasks.is_empty() {
                break;
            }
            tasks.into_iter().for_each(dispose);
        }
        here.id.set(0);
        here.ready.borrow_mut().clear();
        let wakers = (here.deferred.take(), here.timers.borrow_mut().drain());
        drop(wakers);
        drop(here.sources.take());
        drop(here.kernel.take());
    }
}

/// Drops what holds a future; a panic of that ends with it.
fn dispose<T>(holds: T) {
    // What was thrown is in the log already, by the panic hook.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holds)));
}

/// Rounded up: timers whose moments are near each other ring together, a thousand times a second at most.
fn whole_milliseconds(after: Duration) -> Duration {
    let part = after.subsec_nanos() % 1_000_000;
    match part {
        0 => after,
        _ => after + Duration::from_nanos(u64::from(1_000_000 - part)),
    }
}

/// Whether the loop of `mail` is this thread's.
pub(super) fn is_here(mail: &Mailbox) -> bool {
    at_home(mail, |_| ()).is_some()
}

/// Does something with the loop of `mail`, if it is this thread's. A thread that ends has none any more.
fn at_home<T>(mail: &Mailbox, work: impl FnOnce(&Here) -> T) -> Option<T> {
    let done = HERE.try_with(|here| (here.id.get() == mail.id()).then(|| work(here)));
    done.ok().flatten()
}

/// Schedules a task of this thread's loop.
pub(super) fn schedule(key: Key) {
    let _ = HERE.try_with(|here| here.ready.borrow_mut().push_back(key));
}

/// The mailbox of this thread's loop, if it has one.
pub(super) fn mail() -> Option<Arc<Mailbox>> {
    HERE.try_with(Here::mail).ok()?
}

/// Starts a task on this thread's loop; gives it back where there is none.
pub(super) fn spawn(work: Work) -> Result<(), Work> {
    HERE.with(|here| match here.mail() {
        Some(mail) => {
            here.spawn(work, &mail);
            Ok(())
        }
        None => Err(work),
    })
}

/// Wakes `waker` when everything else that is ready has had its turn; at once where no loop runs.
pub(super) fn defer(waker: &Waker) {
    HERE.with(|here| match here.id.get() {
        0 => waker.wake_by_ref(),
        _ => here.deferred.borrow_mut().push(waker.clone()),
    });
}

/// A descriptor's place with the loop of this thread.
#[derive(Debug)]
pub(crate) struct Registration {
    home: Arc<Mailbox>,
    token: Token,
}

impl Registration {
    /// Registers `fd` with this thread's loop. Its owner keeps it open as long as this is there.
    ///
    /// # Errors
    /// When the kernel refuses it, or no loop runs here.
    pub(crate) fn new(fd: &impl AsFd, interest: Interest) -> io::Result<Self> {
        HERE.with(|here| {
            let kernel = here.kernel.borrow();
            let kernel = kernel.as_ref().ok_or_else(no_loop)?;
            let token = here.sources.borrow_mut().add();
            let registration = Self {
                home: Arc::clone(&kernel.mail),
                token,
            };
            let set = kernel.mail.set().as_fd();
            poll::add(set, fd.as_fd(), token.to_u64(), interest)?;
            Ok(registration)
        })
    }

    /// Whether it belongs to this thread's loop.
    pub(crate) fn is_here(&self) -> bool {
        is_here(&self.home)
    }

    /// Ready when the loop has heard that the descriptor is, until [`Registration::clear`].
    ///
    /// # Errors
    /// On any other loop than that where it was registered.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        HERE.with(|here| {
            if here.id.get() != self.home.id() {
                return Poll::Ready(Err(io::Error::other("a descriptor of another loop")));
            }
            let mut sources = here.sources.borrow_mut();
            if !sources.is_ready(self.token, side) {
                let before = sources.wait(self.token, side, cx.waker());
                drop(sources);
                drop(before);
                return Poll::Pending;
            }
            match here.budget.get().checked_sub(1) {
                Some(left) => {
                    here.budget.set(left);
                    Poll::Ready(Ok(()))
                }
                None => {
                    here.deferred.borrow_mut().push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    /// Whether the loop has heard that it is ready; `None` on another loop.
    pub(crate) fn is_ready(&self, side: Side) -> Option<bool> {
        self.known(|sources| sources.is_ready(self.token, side))
    }

    /// Whether the loop has heard that the other side has ended; `None` on another loop.
    pub(crate) fn is_ended(&self, side: Side) -> Option<bool> {
        self.known(|sources| sources.is_ended(self.token, side))
    }

    fn known(&self, ask: impl FnOnce(&Sources) -> bool) -> Option<bool> {
        at_home(&self.home, |here| ask(&here.sources.borrow()))
    }

    /// Whether the end of what can be read is told again and again: not while a connection that breaks is
    /// waited for.
    pub(crate) fn tell_end(&self, is_told: bool) {
        HERE.with(|here| {
            if here.id.get() == self.home.id() {
                here.sources.borrow_mut().tell_end(self.token, is_told);
            }
        });
    }

    /// What was ready has been used up: the next edge tells of more.
    pub(crate) fn clear(&self, side: Side) {
        HERE.with(|here| {
            if here.id.get() == self.home.id() {
                here.sources.borrow_mut().clear(self.token, side);
            }
        });
    }

    /// Takes `fd`, whose registration this is, from its loop's set, before it is closed or waited for elsewhere.
    /// From any thread.
    pub(crate) fn remove(&self, fd: &impl AsFd) {
        // It was added, and is open.
        let removed = poll::remove(self.home.set().as_fd(), fd.as_fd());
        debug_assert!(removed.is_ok(), "{removed:?}");
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let kept = at_home(&self.home, |here| {
            here.sources.borrow_mut().remove(self.token)
        });
        if kept.is_none() {
            self.home.leave(Letter::Forget(self.token));
        }
    }
}

/// A timer of this thread's loop. One that rang stays until it is dropped.
#[derive(Debug)]
pub(crate) struct Timer {
    home: Arc<Mailbox>,
    key: TimerKey,
}

impl Timer {
    /// Wakes `waker` at `at` or soon after.
    ///
    /// # Panics
    /// Where no loop runs: it could never ring.
    pub(crate) fn new(at: Instant, waker: &Waker) -> Self {
        HERE.with(|here| {
            let home = here.mail().expect("timers are armed on loops");
            let key = here.timers.borrow_mut().arm(at, waker.clone());
            Self { home, key }
        })
    }

    /// The moment that it was armed for.
    pub(crate) fn at(&self) -> Instant {
        self.key.at
    }

    /// Lets it wake `waker` and nobody else; `false` when it has rung, or is of another loop.
    pub(crate) fn turn_to(&self, waker: &Waker) -> bool {
        HERE.with(|here| {
            if here.id.get() != self.home.id() {
                return false;
            }
            let turned = here.timers.borrow_mut().turn_to(self.key, waker);
            turned.map(drop).is_ok()
        })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let kept = at_home(&self.home, |here| here.timers.borrow_mut().disarm(self.key));
        if kept.is_none() {
            self.home.leave(Letter::Disarm(self.key));
        }
    }
}

/// Places that this thread's loop has for descriptors, in use or free.
#[cfg(test)]
pub(super) fn places() -> usize {
    HERE.with(|here| here.sources.borrow().places())
}

fn no_loop() -> io::Error {
    io::Error::other("no loop runs on this thread")
}
