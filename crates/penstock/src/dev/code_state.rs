//! The state of an application's code, as pages ask for it in development.
//!
//! `explain` answers them with it (`exchange::development`).

use penstock_apps::AppSnapshot;
use penstock_exchange::development::CodeState;

use super::secrets::mask_text;

/// What pages get to know of an application's code.
pub(super) fn code_state(app: &AppSnapshot) -> CodeState {
    let failure = app
        .restart_error
        .as_deref()
        .map(penstock_apps::failure_line);
    CodeState {
        mark: code_mark(app),
        is_serving: matches!(app.state.as_str(), "ready" | "degraded"),
        failure: failure.map(mask_text),
    }
}

/// The oldest generation that serves: another once only new code does.
fn code_mark(app: &AppSnapshot) -> String {
    let ready = app.workers.iter().filter(|worker| worker.state == "ready");
    match ready.map(|worker| worker.generation).min() {
        Some(generation) => generation.to_string(),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use penstock_apps::WorkerSnapshot;

    use super::*;

    #[test]
    fn the_mark_is_another_once_only_new_code_serves() {
        let worker = |generation, state| WorkerSnapshot {
            generation,
            state,
            ..WorkerSnapshot::default()
        };
        let rows: [(&[(u64, &'static str)], &str); 4] = [
            (&[], "none"),
            (&[(1, "booting")], "none"),
            (&[(3, "ready"), (4, "ready"), (4, "booting")], "3"),
            (&[(3, "retiring"), (4, "ready")], "4"),
        ];
        for (workers, mark) in rows {
            let workers = workers
                .iter()
                .map(|(generation, state)| worker(*generation, state));
            let app = AppSnapshot {
                workers: workers.collect(),
                ..AppSnapshot::default()
            };
            assert_eq!(code_state(&app).mark, mark);
        }
    }
}
