//! The spool's promises: order, bounds, back-pressure, ends that are failures.

use std::future::poll_fn;
use std::time::Duration;

use penstock_runtime::{clock, loops};

use super::*;
use crate::FaultKind;
use crate::buffering::{CapacityDemand, SlowResponses, TempSpace};

fn settings(memory: usize, file: u64) -> Arc<BufferingSettings> {
    Arc::new(BufferingSettings {
        max_body_memory: 0,
        max_response_memory: memory,
        max_response_spool: file,
        min_busy_rate: 0,
        rate_grace: Duration::ZERO,
        temp_dir: std::env::temp_dir(),
        temp_space: Arc::default(),
        pool: Pool::new("test", 1, 64),
    })
}

/// A spool of a producer without a bound.
fn spool(
    settings: Arc<BufferingSettings>,
    client: Option<AddressPrefix>,
    is_unbuffered: bool,
    length: Option<u64>,
) -> (SpoolWriter, SpoolReader) {
    let spec = SpoolSpec {
        client,
        producer: None,
        is_unbuffered,
        length,
    };
    create_spool(settings, spec)
}

fn on_a_loop(test: impl Future<Output = ()>) {
    let done = loops::block_on(clock::timeout(Duration::from_secs(20), test));
    done.unwrap().expect("done within 20 s");
}

async fn next(reader: &mut SpoolReader) -> Option<Result<Bytes, Fault>> {
    poll_fn(|cx| reader.poll_chunk(cx)).await
}

async fn read_all(reader: &mut SpoolReader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = next(reader).await {
        all.extend_from_slice(&piece.expect("a whole body"));
    }
    all
}

#[test]
fn pieces_come_out_in_order_through_memory_and_file() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(
            settings(100, 1 << 20),
            Some(AddressPrefix::default()),
            false,
            None,
        );
        let mut expected = Vec::new();
        for round in 0..200_u8 {
            let piece = vec![round; 1 + usize::from(round)];
            expected.extend_from_slice(&piece);
            writer.push(&piece);
            writer.flush().await.unwrap();
        }
        writer.finish(Ok(None));
        assert_eq!(read_all(&mut reader).await, expected);
    });
}

/// The client and the worker are on different loops.
#[test]
fn a_client_that_reads_all_before_a_write_begins_gets_what_is_written() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(settings(10, 1 << 20), None, false, None);
        writer.push(&[1; 10]);
        writer.push(&[2; 20]);
        writer.flush().await.unwrap();
        writer.push(&[3; 30]);
        let room = poll_fn(|cx| writer.poll_space(cx)).await;
        assert!(matches!(room, SpoolSpace::File));
        for expected in [vec![1; 10], vec![2; 20]] {
            assert_eq!(next(&mut reader).await.unwrap().unwrap(), expected);
        }
        writer.write_file().await.unwrap();
        writer.finish(Ok(None));
        assert_eq!(read_all(&mut reader).await, [3; 30]);
    });
}

#[test]
fn a_reader_that_keeps_up_never_touches_the_file() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(
            settings(100, 1 << 20),
            Some(AddressPrefix::default()),
            false,
            None,
        );
        for round in 0..100_u8 {
            writer.push(&[round; 60]);
            assert!(!writer.has_overflow());
            assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![round; 60]);
        }
        assert!(writer.shared.lock().file.is_none());
    });
}

#[test]
fn an_unbuffered_response_makes_the_worker_wait() {
    on_a_loop(async {
        let (mut writer, mut reader) =
            spool(settings(10, 0), Some(AddressPrefix::default()), false, None);
        writer.push(&[1; 10]);
        writer.push(&[2; 10]);
        assert!(writer.has_overflow());
        let mut settle = Box::pin(writer.flush());
        let waits = poll_fn(|cx| Poll::Ready(settle.as_mut().poll(cx).is_pending())).await;
        assert!(waits, "the second piece has no place yet");
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![1; 10]);
        settle.as_mut().await.unwrap();
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), vec![2; 10]);
    });
}

#[test]
fn a_file_at_its_bound_makes_the_worker_wait_until_it_is_read() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(
            settings(10, 100),
            Some(AddressPrefix::default()),
            false,
            None,
        );
        let produce = async {
            for round in 0..50_u8 {
                writer.push(&[round; 40]);
                writer.flush().await.unwrap();
                assert!(writer.shared.lock().unread_file_bytes() <= 100);
            }
            writer.finish(Ok(None));
        };
        let (body, ()) = tokio::join!(read_all(&mut reader), produce);
        let expected: Vec<u8> = (0..50_u8).flat_map(|round| [round; 40]).collect();
        assert_eq!(body, expected);
    });
}

#[test]
fn a_writer_that_vanishes_is_not_the_end_of_the_body() {
    on_a_loop(async {
        let (mut writer, mut reader) = spool(
            settings(100, 0),
            Some(AddressPrefix::default()),
            false,
            None,
        );
        writer.push(b"half");
        drop(writer);
        assert_eq!(next(&mut reader).await.unwrap().unwrap(), "half");
        let fault = next(&mut reader).await.unwrap().unwrap_err();
        assert_eq!(fault.kind, FaultKind::WorkerDied);
    });
}

#[test]
fn a_reader_that_left_frees_the_worker() {
    on_a_loop(async {
        let (mut writer, reader) =
            spool(settings(10, 0), Some(AddressPrefix::default()), false, None);
        writer.push(&[1; 10]);
        writer.push(&[2; 10]);
        let mut writer = Box::pin(async move {
            writer.flush().await.unwrap();
            writer
        });
        assert!(poll_fn(|cx| Poll::Ready(writer.as_mut().poll(cx).is_pending())).await);
        drop(reader);
        let writer = writer.await;
        assert!(poll_fn(|cx| Poll::Ready(writer.poll_reader_gone(cx))).await);
    });
}

fn settings_in(space: &Arc<TempSpace>, memory: usize) -> Arc<BufferingSettings> {
    let settings = settings(memory, 1 << 30);
    Arc::new(BufferingSettings {
        temp_space: Arc::clone(space),
        ..BufferingSettings::clone(&settings)
    })
}

fn space_of(bytes: u64) -> Arc<TempSpace> {
    let space = Arc::new(TempSpace::default());
    space.set_max(bytes);
    space
}

/// The file is closed in a pool.
async fn until_empty(space: &TempSpace) {
    while space.snapshot().used > 0 {
        loops::yield_now().await;
    }
}

fn byte(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// Produces this many bytes, in pieces of growing size.
async fn produce(mut writer: SpoolWriter, bytes: usize) {
    let mut at = 0;
    let sizes = (1..).map(|number| number * 977 % 200_000 + 1);
    for size in sizes {
        let piece: Vec<u8> = (at..bytes.min(at + size)).map(byte).collect();
        if piece.is_empty() {
            break;
        }
        at += piece.len();
        writer.push(&piece);
        writer.flush().await.unwrap();
    }
    writer.finish(Ok(None));
}

fn assert_content(body: &[u8], bytes: usize) {
    assert_eq!(body.len(), bytes);
    let wrong = body.iter().enumerate().find(|&(at, &got)| got != byte(at));
    assert_eq!(wrong, None);
}

#[test]
fn the_file_is_no_longer_than_its_unread_bytes() {
    on_a_loop(async {
        // Its client takes nearly as fast as it is produced.
        let space = space_of(17 << 20);
        let (writer, mut reader) = spool(
            settings_in(&space, 1000),
            Some(AddressPrefix::default()),
            false,
            None,
        );
        let bytes = 20 << 20;
        let most = std::cell::Cell::new(0);
        let read = async {
            let mut all = Vec::new();
            while let Some(piece) = next(&mut reader).await {
                all.extend_from_slice(&piece.unwrap());
                most.set(most.get().max(space.snapshot().used));
            }
            all
        };
        let (body, ()) = tokio::join!(read, produce(writer, bytes));
        assert_content(&body, bytes);
        assert!((1..=1 << 20).contains(&most.get()), "{}", most.get());
        drop(reader);
        until_empty(&space).await;
    });
}

#[test]
fn without_space_the_worker_waits() {
    on_a_loop(async {
        let space = space_of(200 << 10);
        let bytes = 3 << 20;
        let make = |number| {
            let prefix = Some(AddressPrefix::from_bits(number));
            spool(settings_in(&space, 1000), prefix, false, None)
        };
        let (first, mut reads_first) = make(1);
        let (second, mut reads_second) = make(2);
        let (first, second, _, _) = tokio::join!(
            read_all(&mut reads_first),
            read_all(&mut reads_second),
            produce(first, bytes),
            produce(second, bytes)
        );
        assert_content(&first, bytes);
        assert_content(&second, bytes);
        assert!(space.snapshot().waited_total > 0);
    });
}

#[test]
fn space_of_a_disconnected_client_is_released() {
    on_a_loop(async {
        let space = space_of(64 << 20);
        let settings = settings_in(&space, 10);
        let (mut writer, reader) = spool(settings, Some(AddressPrefix::default()), false, None);
        for _ in 0..20 {
            writer.push(&[1; 50_000]);
            writer.flush().await.unwrap();
        }
        assert_eq!(space.snapshot().used, 8 * BLOCK_BYTES);
        drop(reader);
        until_empty(&space).await;
        writer.push(&[1; 50_000]);
        writer.flush().await.unwrap();
        assert_eq!(space.snapshot().used, 0);
    });
}

/// A producer with a request that waits for a place.
#[derive(Debug, Default)]
struct Busy(SlowResponses);

impl ResponseProducer for Busy {
    fn slow_responses(&self) -> &SlowResponses {
        &self.0
    }

    fn capacity_demand(&self, _now: Instant) -> CapacityDemand {
        CapacityDemand {
            waiting_requests: 1,
            oldest_wait: Duration::from_secs(5),
            max_active_requests: 1,
            pipelined_wait: None,
        }
    }

    fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        vec![None]
    }

    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str) {
        panic!("{clients:?} are not known: {cause}");
    }

    fn label(&self) -> String {
        "application test".to_owned()
    }
}

/// A full spool of 10 bytes of a busy producer, of which the client takes nothing.
fn contested(min_busy_rate: u64, temp_bytes: u64) -> (Arc<Busy>, SpoolWriter, SpoolReader) {
    let busy = Arc::new(Busy::default());
    let space = Arc::new(TempSpace::default());
    space.set_max(temp_bytes);
    let settings = Arc::new(BufferingSettings {
        min_busy_rate,
        max_response_spool: 0,
        ..BufferingSettings::clone(&settings_in(&space, 0))
    });
    let spec = SpoolSpec {
        producer: Some(Arc::<Busy>::clone(&busy)),
        ..SpoolSpec::default()
    };
    let (mut writer, reader) = create_spool(settings, spec);
    writer.push(&[1; 10]);
    writer.push(&[2; 20]);
    (busy, writer, reader)
}

async fn is_waiting(writer: &mut SpoolWriter) -> bool {
    let mut settling = Box::pin(writer.flush());
    poll_fn(|cx| Poll::Ready(settling.as_mut().poll(cx).is_pending())).await
}

#[test]
fn a_response_for_whose_place_others_wait_is_cut_if_its_client_is_slow() {
    on_a_loop(async {
        let (busy, mut writer, mut reader) = contested(1, 0);
        let fault = writer.flush().await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::ClientTooSlow);
        assert!(
            fault.cause.contains("limits.min_busy_rate"),
            "{}",
            fault.cause
        );
        assert_eq!(busy.0.len(), 1);
        writer.finish(Err(fault));
        // The spooled bytes are dropped: its client would keep them for long.
        let end = next(&mut reader).await.unwrap().unwrap_err();
        assert_eq!(end.kind, FaultKind::ClientTooSlow);
        assert_eq!(busy.0.len(), 0);
    });
}

#[test]
fn a_response_for_whose_place_others_wait_grows_beyond_its_spool() {
    on_a_loop(async {
        let (_busy, mut writer, mut reader) = contested(0, 1 << 20);
        writer.flush().await.unwrap();
        writer.finish(Ok(None));
        let body = read_all(&mut reader).await;
        assert_eq!(body, [[1; 10].as_slice(), &[2; 20]].concat());
    });
}

#[test]
fn a_response_that_its_producer_is_done_with_holds_no_place() {
    on_a_loop(async {
        let (busy, mut writer, _reader) = contested(1, 0);
        assert!(is_waiting(&mut writer).await);
        assert_eq!(busy.0.len(), 1);
        writer.release_capacity();
        assert!(is_waiting(&mut writer).await);
        assert_eq!(busy.0.len(), 0);
        // The same when it happens while the writer waits.
        let (busy, mut writer, _reader) = contested(1, 0);
        assert!(is_waiting(&mut writer).await);
        writer.capacity_releaser().release();
        assert!(is_waiting(&mut writer).await);
        assert_eq!(busy.0.len(), 0);
    });
}
