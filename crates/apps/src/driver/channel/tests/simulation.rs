//! Many streams at once with everything that may happen to them, by seed: each gets its own bytes
//! and one end, the worker gets each body whole and for its own request, and nothing is left.
//! Bodies are longer than the socket takes at once, or still come; clients leave at every moment,
//! the worker pauses. `PENSTOCK_SEED=n` replays one, `PENSTOCK_SEEDS=n` runs so many.

use penstock_runtime::loops;
use std::collections::HashMap;
use std::os::unix::fs::FileExt;

use super::*;
use crate::testing::{BodyScript, ScriptedBody};
use crate::upload::Upload;
use penstock_wire::frame::{FLAG_BODY_FILE, FLAG_OPEN_STREAM};

struct Rng(u64);

impl Rng {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// What the worker of the play is to do with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ResponsePlan {
    Whole(usize),
    Stream(usize),
    Raise,
    /// Nothing, until the client has left.
    Wait,
}

/// What a request brings.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RequestBodyPlan {
    Nothing,
    Bytes(usize),
    File(usize),
    /// So many bytes, while the request is in progress.
    Stream(usize),
}

impl RequestBodyPlan {
    fn roll(dice: &mut Rng) -> Self {
        let bits = 8 + dice.below(12);
        let len = usize::try_from(1 + dice.below(1 << bits)).unwrap();
        match dice.below(5) {
            0 => Self::Bytes(len),
            1 => Self::File(len.min(5000)),
            2 => Self::Stream(len),
            _ => Self::Nothing,
        }
    }
}

/// A request's body: as other requests' are not, and full of what could be frames.
fn brought(n: usize, len: usize) -> Vec<u8> {
    let unit = [
        channel::encode_stream_cancel(0).as_slice(),
        &n.to_le_bytes(),
    ]
    .concat();
    unit.into_iter().cycle().take(len).collect()
}

/// What of its body an OPEN has in itself.
fn inline(frame: &Frame) -> &[u8] {
    let (environ_len, rest) = frame.rest.split_first_chunk::<4>().unwrap();
    &rest[u32::from_le_bytes(*environ_len) as usize..]
}

/// A body that the worker reads to its end before it answers.
struct BodyReading {
    n: usize,
    read: Vec<u8>,
}

/// Answers as planned, or begins to.
async fn begin(
    worker: &FakeWorker,
    (id, n, plan): (u32, usize, ResponsePlan),
    room: &mut HashMap<u32, usize>,
    active: &mut Vec<(u32, Vec<u8>)>,
) {
    match plan {
        ResponsePlan::Whole(len) => worker.answer(id, &text(n, len)).await,
        ResponsePlan::Raise => worker.reset(id).await,
        ResponsePlan::Wait => {}
        ResponsePlan::Stream(len) => {
            worker.begin(id, &[b"200"], b"").await;
            room.insert(id, channel::WINDOW_BYTES as usize);
            active.push((id, text(n, len)));
        }
    }
}

/// Checks that an OPEN has the body that its request brought.
fn check_body(worker: &FakeWorker, frame: &Frame, n: usize, brings: RequestBodyPlan) {
    let flags = match brings {
        RequestBodyPlan::File(_) => FLAG_BODY_FILE,
        RequestBodyPlan::Stream(_) => FLAG_OPEN_STREAM,
        RequestBodyPlan::Nothing | RequestBodyPlan::Bytes(_) => 0,
    };
    assert_eq!(frame.flags, flags, "request {n}");
    let inline = inline(frame);
    match brings {
        RequestBodyPlan::Nothing => assert!(inline.is_empty()),
        RequestBodyPlan::Stream(len) => assert!(brought(n, len).starts_with(inline), "request {n}"),
        RequestBodyPlan::Bytes(len) => {
            assert!(inline == brought(n, len), "the body of request {n}");
        }
        RequestBodyPlan::File(len) => {
            let (mut id, mut descriptors) = ([0; 8], Vec::new());
            let socket = std::os::fd::AsFd::as_fd(&worker.files);
            let count = net::receive_with_descriptors(socket, &mut id, &mut descriptors);
            assert_eq!((count.unwrap(), descriptors.len()), (4, 1));
            assert_eq!(id[..4], frame.id.to_le_bytes(), "whose file it is");
            let mut read = Vec::new();
            let mut file = std::fs::File::from(descriptors.remove(0));
            file.read_to_end(&mut read).unwrap();
            assert!(read == brought(n, len), "the file of request {n}");
        }
    }
}

fn text(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n + at / 7).to_le_bytes()[0]).collect()
}

/// Plays the worker until the channel ends; `plans` are by the number in a request's path.
async fn play(mut worker: FakeWorker, plans: Vec<(ResponsePlan, RequestBodyPlan)>, mut dice: Rng) {
    let (plans, brings): (Vec<_>, Vec<_>) = plans.into_iter().unzip();
    let mut by_id: HashMap<u32, usize> = HashMap::new();
    let mut room: HashMap<u32, usize> = HashMap::new();
    let mut active: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut reading: HashMap<u32, BodyReading> = HashMap::new();
    loop {
        // It does something else for a while, and what it is sent waits.
        if dice.below(6) == 0 {
            for _ in 0..dice.below(300) {
                loops::yield_now().await;
            }
        }
        let idle = active.iter().all(|(id, _)| room[id] == 0);
        let frame = match idle {
            true => match worker.try_next().await {
                Some(frame) => Some(frame),
                None => return,
            },
            false => {
                let next = std::pin::pin!(worker.try_next());
                match poll_once(next).await {
                    Some(None) => return,
                    Some(Some(frame)) => Some(frame),
                    None => None,
                }
            }
        };
        match frame {
            Some(frame) if frame.kind == FrameKind::Open => {
                let text_at = frame.rest.windows(2).position(|w| w == b"/n").unwrap() + 2;
                let digits: String = frame.rest[text_at..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .map(|byte| char::from(*byte))
                    .collect();
                let n: usize = digits.parse().unwrap();
                check_body(&worker, &frame, n, brings[n]);
                by_id.insert(frame.id, n);
                // Some answer without what they have asked for, or without having asked.
                let is_streamed = frame.flags == FLAG_OPEN_STREAM;
                let is_read = is_streamed && dice.below(3) > 0;
                if is_read || is_streamed && dice.below(2) > 0 {
                    worker
                        .write(|out| reactor_encoder::encode_pull(out, frame.id))
                        .await;
                }
                if is_read {
                    let read = inline(&frame).to_vec();
                    reading.insert(frame.id, BodyReading { n, read });
                } else {
                    begin(&worker, (frame.id, n, plans[n]), &mut room, &mut active).await;
                }
            }
            Some(frame) if frame.kind == FrameKind::StreamInput => {
                let n = by_id[&frame.id];
                let RequestBodyPlan::Stream(len) = brings[n] else {
                    panic!("a piece for request {n}");
                };
                assert!(frame.rest.len() <= penstock_wire::MAX_INPUT_BYTES);
                let Some(body) = reading.get_mut(&frame.id) else {
                    continue;
                };
                body.read.extend_from_slice(&frame.rest);
                let whole = brought(body.n, len);
                assert!(whole.starts_with(&body.read), "the body of request {n}");
                if frame.flags == FLAG_END {
                    assert!(whole == body.read, "all of the body of request {n}");
                    reading.remove(&frame.id);
                    begin(&worker, (frame.id, n, plans[n]), &mut room, &mut active).await;
                } else {
                    worker
                        .write(|out| reactor_encoder::encode_pull(out, frame.id))
                        .await;
                }
            }
            Some(frame) if frame.kind == FrameKind::Window => {
                let (bytes, _) = frame.rest.split_first_chunk::<4>().unwrap();
                if let Some(room) = room.get_mut(&frame.id) {
                    *room += u32::from_le_bytes(*bytes) as usize;
                }
            }
            Some(frame) => {
                assert_eq!(frame.kind, FrameKind::StreamCancel);
                // It may have ended already.
                let was_active = active.iter().any(|(id, _)| *id == frame.id);
                let was_reading = reading.remove(&frame.id).is_some();
                if was_active || was_reading || plans[by_id[&frame.id]] == ResponsePlan::Wait {
                    active.retain(|(id, _)| *id != frame.id);
                    worker.reset(frame.id).await;
                }
            }
            None => {}
        }
        let ready: Vec<usize> = (0..active.len())
            .filter(|at| room[&active[*at].0] > 0)
            .collect();
        if let Some(at) = ready.get(usize::try_from(dice.below(1 + ready.len() as u64)).unwrap()) {
            let (id, rest) = &mut active[*at];
            let most = rest.len().min(room[id]).min(64 << 10);
            let len = usize::try_from(dice.below(most as u64 + 1)).unwrap();
            let piece: Vec<u8> = rest.drain(..len).collect();
            *room.get_mut(id).unwrap() -= len;
            let (id, is_last) = (*id, rest.is_empty());
            worker.data(id, &piece, is_last).await;
            if is_last {
                active.retain(|(of, _)| *of != id);
            }
        }
    }
}

async fn run(seed: u64) {
    let mut dice = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let terms = HarnessOptions {
        capacity: u32::try_from(1 + dice.below(20)).unwrap(),
        memory: 1 << (10 + dice.below(7)),
        spool: [0, 100_000, 1 << 30][usize::try_from(dice.below(3)).unwrap()],
        ..HarnessOptions::default()
    };
    let plans: Vec<(ResponsePlan, RequestBodyPlan)> = (0..60)
        .map(|_| {
            let brings = RequestBodyPlan::roll(&mut dice);
            let bits = 1 + dice.below(20);
            let len = usize::try_from(dice.below(1 << bits)).unwrap();
            let plan = match dice.below(6) {
                0 | 1 => ResponsePlan::Whole(len),
                2 | 3 => ResponsePlan::Stream(len),
                4 => ResponsePlan::Raise,
                _ => ResponsePlan::Wait,
            };
            (plan, brings)
        })
        .collect();
    let harness = ChannelHarness::with(&terms);
    let mut clients = Vec::new();
    let pool = harness.shared.buffering_settings.load().pool.clone();
    for (n, (plan, brings)) in plans.iter().copied().enumerate() {
        let mut coming = None;
        let (len, body_of): (_, RequestContent) = match brings {
            RequestBodyPlan::Nothing => (0, CollectedBody::Empty.into()),
            RequestBodyPlan::Bytes(len) => (len, CollectedBody::Memory(brought(n, len)).into()),
            RequestBodyPlan::Stream(len) => {
                let (line, body) = ScriptedBody::new();
                let mut whole = brought(n, len);
                let at_hand = usize::try_from(dice.below(len as u64 + 1))
                    .unwrap()
                    .min(60 << 10);
                let rest = whole.split_off(at_hand);
                coming = Some((line, rest, dice.below(1 << 16) + 1));
                let content = RequestContent::Streaming {
                    first: whole,
                    length: Some(len as u64),
                    rest: Upload::spawn(Box::new(body), Arc::default()),
                };
                (len, content)
            }
            RequestBodyPlan::File(len) => {
                let file = nameless(pool.clone());
                file.write_all_at(&brought(n, len), 0).unwrap();
                let file = Arc::new(file);
                let bytes = len as u64;
                (len, CollectedBody::File { file, len: bytes }.into())
            }
        };
        let head = format!("POST /n{n} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
        let asked = harness.request(request(&head), body_of);
        let leaves = plan == ResponsePlan::Wait || dice.below(3) == 0;
        let pauses = dice.below(200);
        if let Some((line, rest, step)) = coming {
            let mut dice = Rng(dice.below(u64::MAX) | 1);
            loops::spawn_here(async move {
                for piece in rest.chunks(usize::try_from(step).unwrap()) {
                    for _ in 0..dice.below(20) {
                        loops::yield_now().await;
                    }
                    line.push(BodyScript::Piece(piece.to_vec()));
                }
                line.push(BodyScript::End);
            });
        }
        clients.push(loops::spawn_with_handle(async move {
            for _ in 0..pauses {
                loops::yield_now().await;
            }
            if leaves {
                drop(asked);
                return;
            }
            match (plan, asked.answer().await) {
                (ResponsePlan::Raise, Err(fault)) => assert_eq!(fault.kind, FaultKind::AppRaised),
                (ResponsePlan::Whole(len) | ResponsePlan::Stream(len), Ok(response)) => {
                    assert!(body(response).await.unwrap() == text(n, len), "request {n}");
                }
                (plan, answer) => panic!("{plan:?}: {answer:?}"),
            }
        }));
    }
    let ChannelHarness {
        shared,
        worker,
        mailbox,
        slot,
        driver,
    } = harness;
    let worker = loops::spawn_with_handle(play(worker, plans, dice));
    for client in clients {
        within(client).await.expect("every client is served");
    }
    while shared.dispatch.queue_usage(clock::now()).in_progress > 0 {
        loops::yield_now().await;
    }
    shared.dispatch.retire_slot(slot, &mailbox);
    assert_eq!(within(driver).await.unwrap(), DriverEnd::Retired);
    within(worker).await.expect("the worker saw nothing odd");
    let usage = shared.dispatch.queue_usage(clock::now());
    assert_eq!((usage.waiting, usage.in_progress), (0, 0));
    assert_eq!(
        mailbox
            .in_progress
            .load(std::sync::atomic::Ordering::Relaxed),
        0
    );
}

#[test]
fn every_request_gets_its_own_bytes_whatever_happens_to_the_others() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = match number("PENSTOCK_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("PENSTOCK_SEEDS").unwrap_or(20)).collect(),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| on_a_loop(run(seed)));
        assert!(run.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}
