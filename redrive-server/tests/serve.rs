//! The binary as a person meets it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn redrive(dir: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(args).current_dir(dir).env_remove("REDRIVE_DATABASE");
    if args.first() == Some(&"serve") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command
}

#[test]
fn serve_opens_an_embedded_database_and_stops_cleanly_on_ctrl_c() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = redrive(dir.path(), &["serve"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let database = lines.find(|line| line.contains("database:")).unwrap();
    assert!(database.contains("redrive.db"), "{database}");
    lines.find(|line| line.contains("Ctrl-C")).unwrap();
    assert!(dir.path().join("redrive.db").exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(lines.last().unwrap(), "stopped");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_wrong_database_says_what_to_do_and_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let out = redrive(dir.path(), &["serve", "--database", "oracle://me:hunter2@host/db"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(said.contains("use sqlite://file.db") && !said.contains("hunter2"), "{said}");
}

/// The same code, whether it is a server that is started or a command that looks.
#[test]
fn a_setting_that_is_not_valid_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("redrive.toml"), "[defaults]\nmax_attempts = 0\n").unwrap();
    for args in [&["serve"][..], &["migrate"], &["task", "ls"]] {
        let out = redrive(dir.path(), args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// Flag, environment, file, default: for a command that serves, one that migrates and one that looks.
#[test]
fn the_database_is_that_which_was_named_last() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("redrive.toml"), "database = 'sqlite://file.db'").unwrap();
    std::fs::write(dir.path().join("other.toml"), "database = 'sqlite://other.db'").unwrap();
    let ways = [
        (&["--database", "sqlite://redrive.db"][..], Some("sqlite://env.db"), "redrive.db"),
        (&[], Some("sqlite://env.db"), "env.db"),
        (&[], None, "file.db"),
        (&["--config", "other.toml"], None, "other.db"),
    ];
    for (args, env, file) in ways {
        for command in [&["migrate"][..], &["token", "ls"], &["serve"]] {
            let of_file = |ending: &str| dir.path().join(format!("{file}{ending}"));
            let all = [command, args].concat();
            let mut child = redrive(dir.path(), &all);
            env.iter().for_each(|env| _ = child.env("REDRIVE_DATABASE", env));
            let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            match command {
                ["serve"] => {
                    let said = lines.find(|line| line.contains("database:")).unwrap();
                    assert!(said.contains(file), "{all:?}: {said}");
                    lines.find(|line| line.contains("Ctrl-C")).unwrap();
                    child.kill().unwrap();
                }
                _ => lines.for_each(drop),
            }
            child.wait().unwrap();
            assert!(of_file("").exists(), "{all:?} {env:?}");
            ["", "-wal", "-shm"].map(of_file).iter().for_each(|file| _ = std::fs::remove_file(file));
            let left = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
            assert_eq!(left.filter(|name| name.to_string_lossy().contains(".db")).count(), 0, "{all:?}");
        }
    }
}

#[test]
fn without_a_token_it_answers_on_loopback_only_and_logs_are_json_on_request() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("redrive.toml"), "[server]\nlisten = '0.0.0.0:0'\nlog = 'json'").unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let out = serve.arg("serve").current_dir(dir.path()).env_remove("REDRIVE_DATABASE").output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && said.contains("redrive token create"), "{said}");
    let tokens = redrive(dir.path(), &["token", "ls", "--json"]).output().unwrap();
    assert!(tokens.status.success() && tokens.stdout.is_empty(), "none was made that nobody has seen");
    for line in said.lines().filter(|line| line.starts_with('{')) {
        assert!(serde_json::from_str::<serde_json::Value>(line).unwrap()["level"].is_string(), "{line}");
    }
}

#[test]
fn migrate_may_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let out = redrive(dir.path(), &["migrate"]).output().unwrap();
        assert!(out.status.success() && String::from_utf8(out.stdout).unwrap().contains("up to date"));
    }
}

/// The node that runs learns of it in its beat and says so; only then is it done.
#[test]
fn migrate_goes_over_to_monthly_tables_while_a_node_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = redrive(dir.path(), &["serve"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("Ctrl-C")).unwrap();
    for _ in 0..2 {
        let out = redrive(dir.path(), &["migrate", "--layout", "monthly"]).output().unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && said.contains("monthly, 2 tables a month"), "{said}");
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    for (wrong, code) in [(&["--layout", "single"][..], 1), (&["--layout", "monthly", "--tables", "3"], 2)] {
        let out = redrive(dir.path(), &[&["migrate"], wrong].concat()).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{wrong:?}");
    }
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let out = redrive(dir.path(), args).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, secret) = said(&["token", "create", "deploy", "--role", "viewer", "--by", "alice"]);
    assert!(code == Some(0) && secret.starts_with("rdr_"), "{secret}");
    let (_, listed) = said(&["token", "ls", "--json"]);
    assert!(listed.contains("\"role\":\"viewer\"") && listed.contains("alice") && !listed.contains(secret.trim()));
    let id = secret.split('_').nth(1).unwrap();
    assert_eq!(said(&["token", "revoke", id, "--by", "alice"]).0, Some(0));
    assert_eq!(said(&["token", "revoke", "0000000000000000", "--by", "alice"]).0, Some(3));
    assert!(said(&["token", "ls"]).1.contains("revoked"));
}

#[test]
fn node_ls_shows_who_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let list = |args: &[&str]| String::from_utf8(redrive(dir.path(), args).output().unwrap().stdout).unwrap();
    assert!(list(&["node", "ls"]).contains("no node is alive"));
    let mut child = redrive(dir.path(), &["serve"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("Ctrl-C")).unwrap();
    assert!(list(&["node", "ls", "--json"]).contains("\"state\":\"alive\""));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert!(list(&["node", "ls"]).contains("no node is alive"));
    assert!(list(&["node", "ls", "--all", "--json"]).contains("\"state\":\"left\""));
}

/// Somebody holds SQLite's one writer, so the stop cannot be written down and waits.
#[tokio::test]
async fn a_second_ctrl_c_stops_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = redrive(dir.path(), &["serve"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("Ctrl-C")).unwrap();
    let url = format!("sqlite://{}", dir.path().join("redrive.db").display());
    let store = redrive::Store::open(&url).await.unwrap();
    let held = store.begin().await.unwrap();
    let interrupt = || Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt().success());
    lines.find(|line| line == "Ctrl-C: stopping").unwrap();
    let ended = tokio::task::spawn_blocking(move || lines.last().unwrap());
    while !ended.is_finished() {
        interrupt(); // those that come with the first one belong to it
    }
    assert_eq!(ended.await.unwrap(), "Ctrl-C: stopped at once");
    assert!(child.wait().unwrap().success());
    held.rollback().await.unwrap();
}

#[test]
fn methods_are_paused_and_resumed_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| String::from_utf8(redrive(dir.path(), args).output().unwrap().stdout).unwrap();
    assert!(said(&["method", "ls"]).contains("nothing waits"));
    assert!(said(&["method", "pause", "charge", "--by", "ada"]).contains("charge: paused"));
    assert!(said(&["method", "pause", "charge"]).contains("was paused already"));
    let listed = said(&["method", "ls", "--json"]);
    assert!(listed.contains("\"by\":\"ada\"") && listed.contains("\"nodes\":0"), "{listed}");
    assert!(said(&["method", "resume", "charge"]).contains("resumed"));
    assert!(said(&["method", "resume", "charge"]).contains("was not paused"));
}
