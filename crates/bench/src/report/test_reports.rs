//! One report of each kind, for the tests of all outputs. Saved, they are also the fixtures of
//! tests/real/test_bench_report.py: change both.

use super::*;

/// A report of each kind, by its name in JSON.
pub(crate) fn all_reports() -> Vec<(&'static str, Report)> {
    vec![
        ("run", run_report()),
        ("mix", mix_report()),
        ("sweep", sweep_report()),
        ("compare", compare_report()),
        ("hold", hold_report()),
    ]
}

/// An open loop with errors of all kinds, an expensive server and a busy generator.
pub(crate) fn run_report() -> Report {
    let mut figures = figures(50, 4000.0, 12_500);
    figures.rate = Some(5000.0);
    figures.service = Some(timings(1200));
    figures.schedule = Some(ArrivalCounts {
        due: 20_000,
        late: 12,
        skipped: 34,
    });
    figures.statuses.redirection = 3;
    figures.statuses.server_error = 4;
    figures.errors = ErrorCounts {
        connect: 1,
        tls: 0,
        timeout: 2,
        reset: 3,
        closed: 4,
        malformed: 5,
        length: 6,
    };
    (figures.unfinished, figures.oldest_unfinished_us) = (7, 81_500);
    figures.retried = 9;
    figures.generator.lag_p99 = Some(900);
    figures.generator.bottleneck = Some("its thread was busy 99 % of the time".to_owned());
    report(ReportResult::Run(Box::new(Run {
        targets: vec!["http://127.0.0.1:8080/".to_owned()],
        figures,
        server: Some(cost(48.0, 90)),
    })))
}

/// Two loads.
pub(crate) fn mix_report() -> Report {
    let named = |name: &str, per_second: f64| LoadFigures {
        name: name.to_owned(),
        ..figures(200, per_second, 40_000)
    };
    report(ReportResult::Mix(Mix {
        targets: vec!["http://127.0.0.1:8080".to_owned()],
        loads: vec![named("random files", 120.0), named("one file", 8000.0)],
        server: None,
    }))
}

/// 1 to 191 connections, interrupted.
pub(crate) fn sweep_report() -> Report {
    let points = (0..20).map(|step| point(1 + step * 10, 0)).collect();
    let mut report = report(ReportResult::Sweep(Sweep {
        targets: vec!["http://127.0.0.1:8080/".to_owned()],
        points,
    }));
    report.context.interrupted = true;
    report
}

/// Three deployments over two rounds and three points, and one that failed.
pub(crate) fn compare_report() -> Report {
    let names = ["penstock", "nginx, \"<b>tuned</b>\"", "puma"];
    let rounds = |shift: u32| {
        let round = |round: u32| [1, 10, 100].map(|c| point(c, shift * 2 + round)).to_vec();
        (0..2).map(round).collect::<Vec<_>>()
    };
    let mut deployments: Vec<DeploymentResult> = (0..3)
        .map(|index: u32| DeploymentResult {
            name: names[index as usize].to_owned(),
            versions: vec![format!("{} 1.{index}", names[index as usize])],
            failure: None,
            rounds: rounds(index),
            summary: Some(summary(1.0 - 0.2 * f64::from(index))),
        })
        .collect();
    if let Some(summary) = &mut deployments[2].summary {
        summary
            .doubts
            .push("100 connections: other programs used the measured cores".to_owned());
    }
    deployments.push(DeploymentResult {
        name: "thin".to_owned(),
        versions: Vec::new(),
        failure: Some(
            "not ready within 5 s\nboom: </script> no such gem\n\x1b[31mbye\n".to_owned(),
        ),
        rounds: Vec::new(),
        summary: None,
    });
    let goal = |text: &str, found: Option<RoundSpread>, met: bool| GoalResult {
        text: text.to_owned(),
        measured: found,
        met,
    };
    report(ReportResult::Compare(CompareResult {
        title: "Hello & <friends>".to_owned(),
        first: "penstock".to_owned(),
        deployments,
        ranking: names.map(str::to_owned).to_vec(),
        goals: vec![
            goal("penstock: p99 <= 9 ms", Some(spread(8.0)), true),
            goal(
                "penstock: CPU per request <= 1 us",
                Some(spread(20.0)),
                false,
            ),
            goal("penstock: requests/s >= 2 x thin", None, false),
        ],
    }))
}
/// A thousand streams opened in ten seconds and held for thirty; some are lost.
pub(crate) fn hold_report() -> Report {
    let lost = LostStreams {
        refused: 1,
        status: 2,
        silent: 3,
        ..LostStreams::default()
    };
    let sample = |second: u32| {
        let open = u64::from(second.min(10)) * 100;
        HoldSample {
            at: f64::from(second),
            is_opening: second < 10,
            open,
            lost: u64::from(second / 7),
            receipts_per_second: to_f64(open) / 15.0,
            server_bytes: Some((20 << 20) + open * 590),
            kernel_bytes: Some(open * 7000),
            tool_bytes: (3 << 20) + open * 90,
            load_average: 0.5 + f64::from(second) / 40.0,
            probe_mean: Some(900.0 + to_f64(open)),
            probe_p99: Some(4000 + open * 3),
            probe_errors: 0,
            latency_p50: (second > 10).then_some(1500),
            latency_p99: (second > 10).then_some(9000 + u64::from(second) * 10),
        }
    };
    report(ReportResult::Hold(Box::new(HoldResult {
        targets: vec!["http://127.0.0.1:8080/events/<a>".to_owned()],
        streams: 1000,
        rate: 100.0,
        heartbeat_seconds: Some(15.0),
        grace_seconds: 5.0,
        agents: 2,
        sources: 2,
        opening_seconds: 10.0,
        held_seconds: 30.0,
        counts: StreamCounts {
            begun: 1000,
            opened: 997,
            open: 994,
            max_open: 997,
            lost,
            receipts: 33_000,
            events: 29_820,
            comments: 1994,
            bytes: 2_900_000,
            received: 29_820,
            missed: 4,
            repeated: 5,
            ..StreamCounts::default()
        },
        statuses: [("503".to_owned(), 2)].into(),
        first_reasons: [("refused".to_owned(), "Connection refused".to_owned())].into(),
        opening: timings(2600),
        full_handshakes: DurationSummary::default(),
        resumed_handshakes: DurationSummary::default(),
        published: Some(PublishResult {
            target: "http://127.0.0.1:8090/publish/".to_owned(),
            channel: "a".to_owned(),
            rate: 1.0,
            accepted: 30,
            late: 1,
            accepting: timings(800),
            latency: timings(9000),
            last_receipt: timings(12_000),
            cpu_us_per_delivery: Some(2.5),
            ..PublishResult::default()
        }),
        probe: Some(ProbeResult {
            target: "http://127.0.0.1:8080/".to_owned(),
            rate: 100.0,
            requests: 4000,
            total: timings(7000),
            while_held: timings(6900),
            ..ProbeResult::default()
        }),
        cost: HoldCost {
            server_bytes_before: Some(20 << 20),
            server_bytes: Some((20 << 20) + 590_000),
            server_bytes_per_stream: Some(590.0),
            kernel_bytes: Some(7_000_000),
            kernel_bytes_per_stream: Some(7000.0),
            kernel_bytes_per_stream_median: Some(6800.0),
            tool_bytes: (3 << 20) + 90_000,
            tool_bytes_per_stream: Some(3236.0),
            server_cpu_seconds: Some(1.5),
            tool_cpu_seconds: 0.7,
            max_load_average: 1.5,
        },
        samples: (0..=40).map(sample).collect(),
        notes: vec!["an agent was busy 97 % of the time".to_owned()],
    })))
}

pub(crate) fn report(result: ReportResult) -> Report {
    Report {
        format: FORMAT_VERSION,
        context: MeasurementContext {
            started: 1_798_761_600,
            tool: "penstock 0.1.0".to_owned(),
            command: vec!["bench".to_owned(), "run <x>".to_owned()],
            machine: Machine {
                cpu: "Some CPU".to_owned(),
                cores: 2,
                memory: 8 << 30,
                system: "Linux 6.18".to_owned(),
            },
            interrupted: false,
        },
        result,
    }
}

/// A curve that rises and levels off, with some noise.
pub(crate) fn point(connections: u32, seed: u32) -> Point {
    let c = f64::from(connections);
    let noise = f64::from((connections * 7 + seed * 13) % 11) / 40.0;
    let per_second = 9000.0 * c / (c + 8.0) * (1.0 - 0.06 * f64::from(seed)) * (0.9 + noise);
    let mut figures = figures(connections, per_second, u64::from(1000 + connections * 210));
    figures.errors.timeout = u64::from(connections / 80);
    Point {
        connections,
        loads: vec![figures],
        server: Some(cost(45.0 + noise * 10.0, 60 + u64::from(connections / 4))),
        alone: false,
    }
}

pub(crate) fn figures(connections: u32, per_second: f64, p99: u64) -> LoadFigures {
    LoadFigures {
        connections,
        seconds: 4.0,
        requests: 16_000,
        requests_per_second: per_second,
        bytes: 16_000 * 800,
        body_bytes: 16_000 * 612,
        bytes_per_second: per_second * 800.0,
        statuses: StatusCounts {
            success: 15_993,
            ..StatusCounts::default()
        },
        connect: timings(90),
        first_byte: timings(p99 - p99 / 10),
        total: timings(p99),
        generator: GeneratorLoad {
            threads: 1,
            busy: 0.31,
            cpu_seconds: 0.6,
            ..GeneratorLoad::default()
        },
        ..LoadFigures::default()
    }
}

fn timings(p99: u64) -> DurationSummary {
    DurationSummary {
        count: 16_000,
        min: p99 / 20,
        mean: to_f64(p99) / 3.0,
        stddev: 100.5,
        p50: p99 / 4,
        p75: p99 / 3,
        p90: p99 / 2,
        p95: p99 * 3 / 4,
        p99,
        p999: p99 * 4,
        p9999: p99 * 5,
        max: p99 * 6,
    }
}

fn cost(cpu_us_per_request: f64, mebibytes: u64) -> ServerCost {
    ServerCost {
        cpu_seconds: 0.7,
        cpu_us_per_request,
        busy_cores: 0.88,
        memory_bytes: mebibytes << 20,
        processes: 3,
        other_processes_share: Some(0.012),
        disk_read_bytes: None,
    }
}

pub(crate) fn spread(median: f64) -> RoundSpread {
    RoundSpread {
        median,
        min: median * 0.95,
        max: median * 1.04,
    }
}

fn summary(scale: f64) -> DeploymentSummary {
    DeploymentSummary {
        requests_per_second: spread(7000.0 * scale),
        cpu_us_per_request: Some(spread(50.0 / scale)),
        memory_bytes: Some(90 << 20),
        p99_us: spread(8000.0 / scale),
        errors: 2,
        ratio: Some(spread(scale)),
        cpu_ratio: Some(spread(1.0 / scale)),
        doubts: Vec::new(),
    }
}
