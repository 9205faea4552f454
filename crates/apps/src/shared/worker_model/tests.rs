//! Requests that wait for the model, and for how long.

use std::sync::Arc;

use penstock_exchange::buffering::BufferingSettings;
use penstock_runtime::blocking::Pool;
use penstock_runtime::loops;
use penstock_wire::Dialect;

use super::*;
use crate::shared::{DispatchMode, Refusal};

fn shared(change: impl FnOnce(&mut config::App)) -> Arc<AppShared> {
    let mut config = config::App::new("site", "/".into(), AppKind::Wsgi, "app:app");
    config.kind_is_guess = true;
    change(&mut config);
    let settings = BufferingSettings {
        max_body_memory: 1024,
        max_response_memory: 1024,
        max_response_spool: 1024,
        min_busy_rate: 0,
        rate_grace: Duration::ZERO,
        temp_dir: std::env::temp_dir(),
        temp_space: Arc::default(),
        pool: Pool::new("test", 1, 1),
    };
    let mode = DispatchMode::Workers(Dialect::Python);
    Arc::new(AppShared::new(&config, mode, settings))
}

fn asgi() -> config::App {
    let mut config = config::App::new("site", "/".into(), AppKind::Asgi, "app:app");
    config.kind_is_guess = true;
    config
}

#[test]
fn a_configured_kind_is_settled_from_the_start() {
    let shared = shared(|config| config.kind_is_guess = false);
    assert_eq!(shared.model.get(), Some(WorkerModel::Threads));
    assert_eq!(shared.model.app_kind(), AppKind::Wsgi);
}

#[test]
fn waiting_requests_continue_when_settled() {
    let shared = shared(|_| {});
    assert_eq!(
        (shared.model.get(), shared.model.app_kind()),
        (None, AppKind::Wsgi)
    );
    let model = loops::block_on(async {
        let waiter = Arc::clone(&shared);
        let client = ClientState::default();
        let wait = async move { waiter.wait_for_model(&client).await };
        let set = async {
            assert_eq!(shared.model.requests_awaiting_model(), 1);
            shared.model.set_from_config(&asgi());
        };
        let (model, ()) = tokio::join!(wait, set);
        model
    });
    let model = model.unwrap().unwrap();
    assert_eq!(model, WorkerModel::Reactor(RequestEncoding::Scope));
    assert!(shared.model.streams_request_bodies());
    assert_eq!(
        (
            shared.model.app_kind(),
            shared.model.requests_awaiting_model()
        ),
        (AppKind::Asgi, 0)
    );
}

#[test]
fn waiting_requests_fail_with_a_reason() {
    let wait = |shared: &Arc<AppShared>, client: &ClientState| {
        let fault = loops::block_on(async {
            let waited = shared.wait_for_model(client).await;
            waited.expect_err("it is never settled").kind
        });
        assert_eq!(shared.model.requests_awaiting_model(), 0);
        fault.unwrap()
    };
    let here = ClientState::default();
    let late = shared(|config| config.queue_timeout = Duration::from_millis(1));
    assert_eq!(wait(&late, &here), FaultKind::QueueTimeout);
    let full = shared(|config| config.max_queued = 0);
    assert_eq!(wait(&full, &here), FaultKind::QueueFull);
    let gone = ClientState::default();
    gone.mark_disconnected();
    assert_eq!(wait(&shared(|_| {}), &gone), FaultKind::ClientDisconnected);
    let refusing = shared(|_| {});
    let cause = "the application does not boot".to_owned();
    let refusal = Refusal {
        cause,
        detail: None,
    };
    refusing.refusal.store(Some(Arc::new(refusal)));
    assert_eq!(wait(&refusing, &here), FaultKind::Unavailable);
}
