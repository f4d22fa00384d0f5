//! The examples run, and say what they promise.

use std::process::Command;

fn run(name: &str, arguments: &[&str]) -> String {
    let mine = std::env::current_exe().unwrap();
    let program = mine.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let ended =
        Command::new(&program).args(arguments).output().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    said
}

#[test]
fn payment() {
    let said = run("payment", &[]);
    assert!(said.contains("try 1 to charge 4200 for order 1 as Some(\"pay-1\")"), "{said}");
    assert!(
        said.contains("paid after 2 more tries") && said.contains("order 2 is rejected: the card was declined"),
        "{said}"
    );
}

#[test]
fn callbacks() {
    let said = run("callbacks", &[]);
    assert!(said.contains("track T1") && said.contains("order 2 is refunded: Exhausted after 3 tries"), "{said}");
}

#[test]
fn transaction() {
    let said = run("transaction", &[]);
    assert!(said.contains("invoice of order 2 sent") && !said.contains("order 1 sent"), "{said}");
}

#[test]
fn guard_bill() {
    let said = run("guard_bill", &[]);
    let expected = [
        "bill 7: marked as abnormal",
        "no new bill for now: 异常处理示例: 2 rows of user 1000 are abnormal: 7 (4000), 8 (4000)",
        "bill 7: \"SUCCESS\", err_status 2001",
        "bill 8: \"FAIL\", err_status 4000, retries 1",
        "bill 8: \"FAIL\", err_status 4001, retries 2",
        "bill 8: \"SUCCESS\", err_status 2002",
        "user 1000 may go on",
    ];
    let mut lines = said.lines();
    for part in expected {
        assert!(lines.any(|line| line.contains(part)), "{part:?} is missing, or in the wrong place: {said}");
    }
}

#[test]
fn inline_only() {
    assert!(run("inline_only", &[]).contains("try 3 for EUR: answered\n1 EUR = 1.0842 USD"));
}

#[test]
fn testing() {
    assert!(run("testing", &[]).contains("without a database: not recorded"));
}

#[test]
fn trip() {
    let said = run("trip", &[]);
    for part in [
        "Ada: 380 for flight and car, and room 7 in Lisbon\nAda: succeeded",
        "Bob: room 7 in Lisbon is given back\nBob: compensated\n",
        "Cleo: stuck\nCleo: compensated\n",
    ] {
        assert!(said.contains(part), "{part:?} is missing: {said}");
    }
}

#[test]
fn reservation() {
    let said = run("reservation", &[]);
    let expected = [
        "2 books are held for Ada (order-7/stock/run)",
        "2 books are released, Ada has not paid (order-7/stock/undo)",
        "after 15 minutes: waiting",
        "1 books are held for Ada (order-7/stock#2/run)",
        "a parcel for Ada: 1 books, 20 paid",
        "1 books are Ada's (order-7/stock#2/confirm)",
        "paid in time: succeeded",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn axum_app() {
    assert!(run("axum_app", &["--once"]).contains("202 Accepted\nHTTP/1.1 200 OK"));
}

#[test]
#[cfg(feature = "tower")]
fn axum_client() {
    let said = run("axum_client", &["--once"]);
    let expected = [
        "1.0842 EUR, fresh",
        "the exchange is down",
        "1.0842 EUR, stale for",
        "the exchange is up",
        "1.0842 EUR, fresh",
    ];
    let mut lines = said.lines();
    for part in expected {
        assert!(lines.any(|line| line.contains(part)), "{part:?} is missing, or in the wrong place: {said}");
    }
}
