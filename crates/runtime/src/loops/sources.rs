//! The descriptors of one loop: what is known of each to be ready, and who waits for it.
//!
//! Pure: `turn` tells it what the kernel said, `Registered` asks it. The kernel tells edges, so what it said
//! holds until whoever reads or writes has met the end and says so. What must stay true: a waker is given
//! out only when something becomes ready that was not, and stays with its descriptor, so that a connection
//! that waits for one thing after the other registers once.

use std::task::Waker;

use penstock_sys::poll::Event;

/// What there is to know of a loop's descriptors.
#[derive(Debug, Default)]
pub(super) struct Sources {
    places: Vec<Source>,
    free: Vec<u32>,
}

/// A descriptor's place. One that is used again has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    index: u32,
    generation: u32,
}

/// One of the two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

#[derive(Debug, Default)]
struct Source {
    generation: u32,
    read: Direction,
    write: Direction,
}

/// What is known of a direction.
#[derive(Debug, Default)]
struct Direction {
    is_ready: bool,
    /// The other side has ended, or the connection broke: ready for ever, to say so.
    is_ended: bool,
    waits: Option<Waker>,
}

impl Direction {
    fn is_ready(&self) -> bool {
        self.is_ready || self.is_ended
    }

    /// Notes what `tell` does; gives whom to wake.
    fn note(&mut self, tell: impl FnOnce(&mut Self)) -> Option<Waker> {
        let was_ready = self.is_ready();
        tell(self);
        match !was_ready && self.is_ready() {
            true => self.waits.take(),
            false => None,
        }
    }
}

impl Token {
    /// As the kernel keeps it.
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn from_u64(number: u64) -> Self {
        let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        Self {
            index: half(number),
            generation: half(number >> 32),
        }
    }
}

impl Sources {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A place for a descriptor of which nothing is known.
    pub(super) fn add(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Source::default());
            u32::try_from(self.places.len() - 1).expect("descriptors are numbered by 31 bits")
        });
        Token {
            index,
            generation: self.places[index as usize].generation,
        }
    }

    /// Frees a place; gives the wakers that it kept, to be dropped when nothing is borrowed.
    pub(super) fn remove(&mut self, token: Token) -> [Option<Waker>; 2] {
        let Some(source) = self.at(token) else {
            return [None, None];
        };
        let generation = source.generation.wrapping_add(1);
        let old = std::mem::replace(
            source,
            Source {
                generation,
                ..Source::default()
            },
        );
        self.free.push(token.index);
        [old.read.waits, old.write.waits]
    }

    /// Notes what the kernel said; gives whom to wake, and then to [`Sources::keep`] again.
    pub(super) fn happened(&mut self, event: &Event) -> [Option<Waker>; 2] {
        let Some(source) = self.at(Token::from_u64(event.token)) else {
            return [None, None];
        };
        let read = source.read.note(|read| {
            read.is_ready |= event.is_readable();
            read.is_ended |= event.is_ended();
        });
        let write = source.write.note(|write| {
            write.is_ready |= event.is_writable();
            write.is_ended |= event.is_broken();
        });
        [read, write]
    }

    /// Gives back who was woken: he waits again as soon as the direction is no longer ready.
    pub(super) fn keep(&mut self, token: Token, side: Side, waker: Waker) -> Option<Waker> {
        match self.direction(token, side) {
            Some(direction) if direction.waits.is_none() => direction.waits.replace(waker),
            _ => Some(waker),
        }
    }

    /// Whether the direction is ready, as far as was told.
    pub(super) fn is_ready(&self, token: Token, side: Side) -> bool {
        self.peek(token, side).is_some_and(Direction::is_ready)
    }

    /// Whether the other side has ended, or the connection broke, as far as was told.
    pub(super) fn is_ended(&self, token: Token, side: Side) -> bool {
        self.peek(token, side)
            .is_some_and(|direction| direction.is_ended)
    }

    /// Notes who waits for the direction; gives who did before, to be dropped when nothing is borrowed.
    pub(super) fn wait(&mut self, token: Token, side: Side, waker: &Waker) -> Option<Waker> {
        match self.direction(token, side) {
            Some(Direction {
                waits: Some(waits), ..
            }) if waits.will_wake(waker) => None,
            Some(direction) => direction.waits.replace(waker.clone()),
            None => None,
        }
    }

    /// The end of what was ready was met.
    pub(super) fn clear(&mut self, token: Token, side: Side) {
        if let Some(direction) = self.direction(token, side) {
            direction.is_ready = false;
        }
    }

    /// Whether the end of what can be read is told: where it is not, the direction waits for the next edge,
    /// which a connection that breaks after all raises.
    pub(super) fn tell_end(&mut self, token: Token, is_told: bool) {
        if let Some(source) = self.at(token) {
            (source.read.is_ready, source.read.is_ended) = (false, is_told);
        }
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    fn direction(&mut self, token: Token, side: Side) -> Option<&mut Direction> {
        let source = self.at(token)?;
        Some(match side {
            Side::Read => &mut source.read,
            Side::Write => &mut source.write,
        })
    }

    fn peek(&self, token: Token, side: Side) -> Option<&Direction> {
        let source = self.places.get(token.index as usize)?;
        let direction = match side {
            Side::Read => &source.read,
            Side::Write => &source.write,
        };
        (source.generation == token.generation).then_some(direction)
    }

    fn at(&mut self, token: Token) -> Option<&mut Source> {
        let source = self.places.get_mut(token.index as usize)?;
        (source.generation == token.generation).then_some(source)
    }
}
