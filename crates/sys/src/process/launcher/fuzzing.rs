//! Orders and replies of any bytes: see `crate::fuzzing`.

use std::ffi::OsString;

use super::launch_order::{LaunchOrder, ProcessLifetime};
use super::{CommandLine, LaunchReply, Privileges};
use crate::account::{Account, User};
#[cfg(test)]
use crate::isolation::AccessRules;
use crate::isolation::Sandbox;

const UNCONFINED: &str = "blog";

/// Privileges of a server that has applications with their own users.
fn privileges() -> Privileges {
    let account = |name: &str| Account {
        name: name.to_owned(),
        user: User {
            name: None,
            uid: 12345,
            gid: None,
            home: None,
        },
        gid: 12345,
    };
    Privileges {
        server: Some(account("server")),
        accounts: vec![account("shop"), account(UNCONFINED)],
        successor: Some((
            CommandLine {
                program: "/nonexistent/penstock".into(),
                args: vec!["serve".into()],
                dir: "/".into(),
                env: vec![("A".into(), "b".into())],
            },
            OsString::from("SOCKET"),
        )),
        unconfined: vec![Some(UNCONFINED.to_owned())],
        groups: Vec::new(),
    }
}

/// See [`crate::fuzzing::read_order`].
pub(crate) fn read_order(bytes: &[u8]) {
    let Some(order) = LaunchOrder::decode(bytes) else {
        return;
    };
    assert_eq!(LaunchOrder::decode(&order.encode()), Some(order.clone()));
    let numbers = &order.fd_numbers;
    assert!(numbers.iter().all(|number| *number >= 0));
    let privileges = privileges();
    let mut permitted = order.clone();
    let mut descriptors = Vec::new();
    let account = privileges.authorize(&mut permitted, &mut descriptors);
    let Ok(account) = account else {
        return;
    };
    // There is no such program, so that none is the next server.
    assert_eq!(order.lifetime, ProcessLifetime::WithServer);
    let name = account.map(|account| account.name.as_str());
    match &order.account {
        Some(asked) => assert_eq!(name, Some(asked.as_str())),
        None => assert_eq!(name, Some("server")),
    }
    match permitted.sandbox {
        Some(sandbox) => assert_eq!(sandbox, Sandbox::available()),
        None => assert_eq!(name, Some(UNCONFINED)),
    }
    assert!(descriptors.is_empty());
    // There is no group, so that no program is put into one.
    assert_eq!(privileges.find_group(&order).is_ok(), order.group.is_none());
    let order = LaunchOrder {
        sandbox: permitted.sandbox,
        ..order
    };
    assert_eq!(permitted, order);
}

/// Decodes `bytes` as the launcher's reply.
pub(crate) fn read_answer(bytes: &[u8]) {
    if let Ok(answer) = LaunchReply::decode(bytes) {
        assert_eq!(LaunchReply::decode(&answer.encode()).ok(), Some(answer));
    }
}

/// Orders to begin with.
#[cfg(test)]
pub(crate) fn sample_orders() -> Vec<Vec<u8>> {
    let order = |account: Option<&str>, sandbox| LaunchOrder {
        program: "python3".into(),
        arg0: "python".into(),
        args: vec!["-c".into()],
        dir: "/srv".into(),
        env: vec![("A".into(), "b".into())],
        fd_numbers: vec![1, 2, 9],
        access: AccessRules::default(),
        lifetime: ProcessLifetime::WithServer,
        sandbox,
        account: account.map(str::to_owned),
        group: None,
        app: "shop".to_owned(),
    };
    let successor = LaunchOrder {
        program: "/nonexistent/penstock".into(),
        arg0: "/nonexistent/penstock".into(),
        args: vec!["serve".into()],
        dir: "/".into(),
        env: vec![("A".into(), "b".into()), ("SOCKET".into(), "9".into())],
        lifetime: ProcessLifetime::Independent,
        ..order(None, None)
    };
    let orders = [
        order(None, None),
        order(None, Some(Sandbox::available())),
        order(Some("shop"), Some(Sandbox::available())),
        order(Some(UNCONFINED), None),
        LaunchOrder {
            group: Some("shop".to_owned()),
            ..order(Some("shop"), Some(Sandbox::available()))
        },
        successor,
    ];
    orders.iter().map(LaunchOrder::encode).collect()
}
