//! The demo as a person meets it: what it tells, and how it ends.

use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    // Settings of whoever runs it do not matter to it.
    std::fs::write(dir.path().join("redrive.toml"), "nonsense").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.arg("demo").args(args).current_dir(dir.path()).env("REDRIVE_DATABASE", "oracle://nowhere").output().unwrap()
}

#[test]
fn every_task_ends_as_announced_and_the_story_is_told() {
    let out = demo(&["--seconds", "10"]);
    let (told, error) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(0), "{error}\n{told}");
    assert_eq!(error, "");
    for line in [
        "/api/v1/dead",
        "order-1       done after 1 attempt",
        "503, 503, then 200 [to be: done after 3 attempts]",
        "answered with the id that it has already",
        "attempt 1 failed, http.503: 503 Service Unavailable: back in a moment; again in",
        "order-2       done after 3 attempts",
        "attempt 1 failed, http.429",
        "attempt 2 failed, unmet",
        "attempt 1 failed, timeout",
        "order-7       dead, rejected after 1 attempt",
        "order-9       dead, exhausted after 3 attempts",
        "warehouse     is down",
        "parcel-2      attempt 1 failed, connect",
        "warehouse     is up again",
        "mail          to ada@example.org: [redrive] 1 dead letter waits for a person: http.shop (1)",
        "order-4       reminder 2",
        "ada has taken it over: no more mails",
        "order-8       dead, exhausted after 3 attempts; redriven",
        "order-8 again done after 1 attempt",
        "All 14 ended as announced",
    ] {
        assert!(told.contains(line), "{line:?} is not in:\n{told}");
    }
    assert!(!told.contains("| NO ") && !told.contains('\x1b'), "no colours off a terminal:\n{told}");
}

#[test]
fn a_time_that_is_too_short_is_refused() {
    let out = demo(&["--seconds", "3"]);
    assert_eq!(out.status.code(), Some(2));
}
