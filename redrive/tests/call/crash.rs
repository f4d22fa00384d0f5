//! `kill -9` at the worst moments: a real process, another one that makes good what it left.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::harness::{Db, stores};
use crate::pay::Shop;

stores!(
    killed_in_the_first_try_under_always_it_is_rescued_and_finished,
    killed_after_deferred_was_said_it_is_finished_after_a_restart,
);

/// The example `killed` beside this test's own program, started on this database; when it has said `word`.
fn start(db: &Db, strategy: &str, word: &str) -> Child {
    let mine = std::env::current_exe().unwrap();
    let program = mine.parent().and_then(|deps| deps.parent()).unwrap().join("examples/killed");
    let mut child = Command::new(&program)
        .args([&*db.url, strategy])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}; build it with `cargo build --examples`", program.display()));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with(word)));
    assert!(said.is_some(), "it never said {word:?}");
    child
}

async fn kill_and_make_good(db: &Db, strategy: &str, word: &str) -> u32 {
    let mut child = start(db, strategy, word);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    assert_eq!(db.count("retry_task").await, 1, "it is written down");
    let mut shop = Shop::open(db, []).await;
    let tried = shop.next_try().await;
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
    tried.attempt
}

async fn killed_in_the_first_try_under_always_it_is_rescued_and_finished(db: Db) {
    assert_eq!(kill_and_make_good(&db, "always", "trying").await, 1, "a crash is not an attempt");
}

async fn killed_after_deferred_was_said_it_is_finished_after_a_restart(db: Db) {
    assert_eq!(kill_and_make_good(&db, "retry_only", "deferred").await, 2);
}
