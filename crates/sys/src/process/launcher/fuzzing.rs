//! Orders and answers of any bytes: see `crate::fuzzing`.

use std::ffi::OsString;

use super::order::{Lifetime, Order};
use super::{ANSWER_BYTES, Answer, Command, Privileges};
use crate::identity::{Account, User};
#[cfg(test)]
use crate::isolation::Access;
use crate::isolation::Sandbox;

const UNCONFINED: &str = "blog";

/// Those of a server that has applications with users of their own.
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
            Command {
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
    let Some(order) = Order::decode(bytes) else {
        return;
    };
    // One way to write each.
    assert_eq!(order.encode(), bytes);
    let numbers = &order.numbers;
    assert!(numbers.iter().all(|number| *number >= 0));
    let privileges = privileges();
    let mut permitted = order.clone();
    let mut descriptors = Vec::new();
    let account = privileges.permit(&mut permitted, &mut descriptors);
    let Ok(account) = account else {
        return;
    };
    // There is no such program, so that none is the next server.
    assert_eq!(order.lifetime, Lifetime::OfServer);
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
    // There is no group, so that nothing is put into one.
    assert_eq!(privileges.find_group(&order).is_ok(), order.group.is_none());
    let order = Order {
        sandbox: permitted.sandbox,
        ..order
    };
    assert_eq!(permitted, order);
}

/// Reads `bytes` as the launcher's answer.
pub(crate) fn read_answer(bytes: &[u8]) {
    if let Ok(answer) = Answer::decode(bytes) {
        let again = answer.encode();
        // Words may be cut, and what is no text in them is written otherwise.
        if !matches!(answer, Answer::Refused(_)) {
            assert_eq!(again, bytes);
        }
        assert!(again.len() <= ANSWER_BYTES && Answer::decode(&again).is_ok());
    }
}

/// Orders to begin with.
#[cfg(test)]
pub(crate) fn orders() -> Vec<Vec<u8>> {
    let order = |account: Option<&str>, sandbox| Order {
        program: "python3".into(),
        arg0: "python".into(),
        args: vec!["-c".into()],
        dir: "/srv".into(),
        env: vec![("A".into(), "b".into())],
        numbers: vec![1, 2, 9],
        access: Access::default(),
        lifetime: Lifetime::OfServer,
        sandbox,
        account: account.map(str::to_owned),
        group: None,
        app: "shop".to_owned(),
    };
    let successor = Order {
        program: "/nonexistent/penstock".into(),
        arg0: "/nonexistent/penstock".into(),
        args: vec!["serve".into()],
        dir: "/".into(),
        env: vec![("A".into(), "b".into()), ("SOCKET".into(), "9".into())],
        lifetime: Lifetime::OfItsOwn,
        ..order(None, None)
    };
    let orders = [
        order(None, None),
        order(None, Sandbox::decode(1)),
        order(Some("shop"), Sandbox::decode(3)),
        order(Some(UNCONFINED), None),
        Order {
            group: Some("shop".to_owned()),
            ..order(Some("shop"), Sandbox::decode(1))
        },
        successor,
    ];
    orders.iter().map(Order::encode).collect()
}
