//! The command line as a person meets it: each story through a server and directly on a database.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::io::{BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use axum::routing::post;
use redrive::{NewTask, Store};
use serde_json::Value;

use support::Server;

/// Where commands are tried: a directory with a database and, in one of two modes, a server on it.
struct Place {
    dir: PathBuf,
    server: Option<Server>,
    /// The directory, if there is no server to keep it.
    _own: Option<tempfile::TempDir>,
}

/// What a command said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(args).current_dir(dir).stdin(Stdio::null()).env("NO_PROXY", "127.0.0.1");
    ["REDRIVE_DATABASE", "REDRIVE_SERVER_URL", "REDRIVE_TOKEN"].iter().for_each(|name| _ = command.env_remove(name));
    command
}

impl Place {
    /// Commands open the database themselves.
    fn direct() -> Self {
        let own = tempfile::tempdir().unwrap();
        Self { dir: own.path().to_owned(), server: None, _own: Some(own) }
    }

    /// Commands go through a server.
    fn served() -> Self {
        let server = Server::start("");
        Self { dir: server.path(""), server: Some(server), _own: None }
    }

    fn both() -> [Self; 2] {
        [Self::direct(), Self::served()]
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.dir, args);
        if let Some(server) = &self.server {
            command.env("REDRIVE_SERVER_URL", server.url()).env("REDRIVE_TOKEN", &server.token);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// What a command that must succeed prints.
    fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, Some(0), "{args:?}: {}{}", said.out, said.err);
        said.out
    }

    /// What a command that must fail with this code says.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, Some(code), "{args:?}: {}{}", said.out, said.err);
        said.err
    }

    fn json(&self, args: &[&str]) -> Vec<Value> {
        let out = self.ok(&[args, &["--json"]].concat());
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Whom the audit names.
    fn me(&self) -> &'static str {
        if self.server.is_some() { "admin" } else { "ada" }
    }

    async fn store(&self) -> Store {
        Store::open(&format!("sqlite://{}", self.dir.join("redrive.db").display())).await.unwrap()
    }

    /// Tasks of a method that no node handles: they wait.
    async fn insert(&self, method: &str, n: usize) -> Vec<String> {
        let new = |n: usize| {
            let task = NewTask::new(method, &serde_json::json!({ "order": n })).unwrap();
            task.key(format!("{method}-{n}")).business("order", n.to_string())
        };
        let store = self.store().await;
        let inserted = store.insert((0..n).map(new).collect(), store.now().await.unwrap()).await.unwrap();
        inserted.iter().map(|task| task.id.to_string()).collect()
    }
}

#[tokio::test]
async fn a_task_is_followed_to_its_end() {
    for place in Place::both() {
        let id = &*place.insert("charge", 1).await.remove(0);
        let shown = place.ok(&["task", "show", id]);
        assert!(shown.contains("PENDING") && shown.contains("order/0") && shown.contains("{\"order\":0}"), "{shown}");
        assert!(place.ok(&["task", "retry", id]).contains("is due now"));
        assert!(place.ok(&["task", "fail", id]).contains("is a dead letter now"));
        let shown = place.ok(&["task", "show", id]);
        assert!(shown.contains("it is a dead letter") && shown.contains("failed_by_hand"), "{shown}");
        assert!(place.ok(&["dead", "ls", "--unacknowledged", "--unowned"]).contains(id));
        assert!(place.ok(&["dead", "ack", id, "--note", "looking"]).contains("is seen"));
        assert!(place.ok(&["dead", "take-over", id, "--owner", "bob"]).contains("is taken over"));
        assert_eq!(place.json(&["dead", "ls", "--owner", "bob", "--reason", "failed_by_hand"])[0]["task"]["id"], id);
        assert!(place.ok(&["dead", "ls", "--unowned"]).contains("no such letter"));
        let back = &place.json(&["dead", "redrive", id])[0];
        assert_eq!((&back["id"], &back["state"]), (&Value::from(id), &Value::from("redriven")));
        let new = back["as"].as_str().unwrap();
        assert_eq!(place.json(&["task", "show", new])[0]["origin_id"], id);
        place.ok(&["task", "fail", new]);
        assert!(place.ok(&["dead", "show", new]).contains("brought back from"));
        assert!(place.ok(&["dead", "resolve", new, "--note", "by hand"]).contains("is resolved"));
        let shown = place.ok(&["task", "show", new]);
        assert!(shown.contains("in the archive") && shown.contains("by hand"), "{shown}");
        assert_eq!(place.json(&["task", "show", new])[0]["found_in"], "archive");
        place.fails(3, &["dead", "resolve", new]);
    }
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    for place in Place::both() {
        place.insert("charge", 1_100).await;
        place.insert("mail", 2).await;
        let count = |args: &[&str]| place.json(&[&["task", "ls"], args].concat()).len();
        assert_eq!(count(&[]), 50);
        assert_eq!(count(&["--limit", "1001"]), 1_001);
        assert_eq!(count(&["--all"]), 1_102);
        assert_eq!(count(&["--method", "mail", "--status", "pending"]), 2);
        assert_eq!(count(&["--status", "running"]), 0);
        assert_eq!(count(&["--business", "order/1"]), 2);
        assert_eq!(count(&["--key", "mail-1"]), 1);
        assert_eq!(count(&["--error-contains", "timeout"]), 0);
        assert_eq!(count(&["--all", "--created-from", "1h ago", "--due-before", "in 1h"]), 1_102);
        assert_eq!(count(&["--created-before", "1h ago"]), 0);
        let said = place.run(&["task", "ls", "--limit", "3"]);
        assert!(said.out.contains("| id") && said.out.contains("mail-1") && said.err.contains("--all"), "{}", said.out);
        assert_eq!(said.out.lines().count(), 7);
        assert!(place.ok(&["task", "ls", "--method", "nobody"]).contains("no such task"));
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "no colours off a terminal");
    }
}

#[tokio::test]
async fn many_are_counted_first_and_nothing_is_done_unasked() {
    for place in Place::both() {
        let ids = place.insert("charge", 1_234).await;
        place.insert("mail", 3).await;
        let of_charge = |more: &[&'static str]| [&["task", "cancel", "--method", "charge"], more].concat();
        let refused = place.fails(2, &of_charge(&[]));
        assert!(refused.contains("cancel 1,234 tasks") && refused.contains("--yes"), "{refused}");
        assert!(place.ok(&of_charge(&["--dry-run"])).contains("cancel 1,234 tasks"));
        assert_eq!(place.json(&of_charge(&["--dry-run"]))[0]["count"]["n"], 1_234);
        assert_eq!(place.json(&["task", "ls", "--all"]).len(), 1_237, "nothing was done");
        let lines = place.json(&of_charge(&["--yes", "--note", "a mistake"]));
        assert!(lines.len() > 1 && lines[0]["state"] == "running", "{lines:?}");
        assert_eq!(
            (&lines[lines.len() - 1]["state"], &lines[lines.len() - 1]["done"]),
            (&"finished".into(), &1_234.into())
        );
        assert_eq!(place.json(&["task", "ls", "--all"]).len(), 3);
        assert!(place.ok(&of_charge(&[])).contains("there are none"));
        let audit = &place.json(&["audit", "ls", "--action", "task.cancel"])[0];
        assert_eq!((&audit["note"], &audit["target"]), (&"a mistake".into(), &"many".into()));
        assert!(place.fails(3, &["task", "retry", &ids[0], &ids[1]]).contains("2 of the tasks are not there"));
        place.fails(3, &["task", "retry", &ids[0]]);
        assert!(place.ok(&["task", "fail", "--all", "--yes"]).contains("fail: 3 done"));
        assert!(place.ok(&["dead", "redrive", "--method", "mail", "--yes", "--rate", "1000"]).contains("3 done"));
        assert_eq!(place.json(&["task", "ls"]).len(), 3);
    }
}

/// By a person who does not want to wait for the end.
#[tokio::test]
async fn a_bulk_that_is_stopped_says_how_far_it_came() {
    for place in Place::both() {
        place.insert("charge", 100).await;
        let mut command = place.command(&["task", "cancel", "--method", "charge", "--rate", "5", "--yes", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("\"running\""), "{first}");
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let said = Said::from(child.wait_with_output().unwrap());
        assert_eq!(said.code, Some(130), "{}", said.err);
        assert!(said.err.contains(" done, and perhaps the batch under way; the same command goes on"), "{}", said.err);
        assert!(!said.err.contains(" 0 done"), "{}", said.err);
        assert!((1..100).contains(&place.json(&["task", "ls", "--all"]).len()));
    }
}

#[tokio::test]
async fn either_ids_are_given_or_a_filter_or_all() {
    let place = Place::direct();
    let id = &*place.insert("charge", 1).await.remove(0);
    for wrong in [
        &["task", "cancel"][..],
        &["task", "cancel", "--yes"],
        &["task", "cancel", id, "--method", "charge"],
        &["task", "cancel", id, "--all"],
        &["task", "cancel", "--all", "--method", "charge"],
        &["task", "cancel", "seven"],
        &["task", "cancel", id, "--rate", "0"],
        &["task", "ls", "--limit", "0"],
        &["task", "ls", "--business", "order"],
        &["task", "ls", "--created-from", "yesterday"],
        &["dead", "redrive", id, "--policy", "{oops"],
        &["dead", "redrive", id, "--policy", "{\"max_atempts\": 1}"],
        &["dead", "ack"],
    ] {
        place.fails(2, wrong);
    }
    assert_eq!(place.json(&["task", "ls"]).len(), 1);
}

/// A letter whose key lives again stays, and that is said.
#[tokio::test]
async fn a_letter_with_a_twin_stays() {
    for place in Place::both() {
        let id = &*place.insert("charge", 1).await.remove(0);
        place.ok(&["task", "fail", id]);
        let twin = place.insert("charge", 1).await.remove(0);
        let said = place.fails(1, &["dead", "redrive", id]);
        assert!(said.contains(&twin), "{said}");
        place.ok(&["dead", "discard", id]);
    }
}

/// One is acted on as one, with a note as without.
#[tokio::test]
async fn what_is_noted_about_one_is_in_the_audit() {
    for place in Place::both() {
        let ids = place.insert("charge", 2).await;
        let noted = |action: &str, id: &str| {
            let last = &place.json(&["audit", "ls", "--action", action])[0];
            assert_eq!((&last["target"], &last["note"]), (&id.into(), &"INC-7".into()), "{last}");
        };
        assert!(place.ok(&["task", "cancel", &ids[0], "--note", "INC-7"]).contains("is cancelled"));
        noted("task.cancel", &ids[0]);
        place.ok(&["task", "fail", &ids[1]]);
        assert!(place.ok(&["dead", "redrive", &ids[1], "--note", "INC-7"]).contains("is back"));
        noted("dead.redrive", &ids[1]);
    }
}

#[tokio::test]
async fn a_letter_that_is_gone_does_not_hold_up_the_others() {
    for place in Place::both() {
        let ids = place.insert("charge", 2).await;
        place.ok(&["task", "fail", &ids[0], &ids[1]]);
        let said = place.run(&["dead", "ack", "1", &ids[0], "2", &ids[1]]);
        assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
        assert_eq!(said.out, format!("{} is seen\n{} is seen\n", ids[0], ids[1]));
        let told: Vec<&str> = said.err.lines().collect();
        assert!(told.len() == 2 && told[0].starts_with("2: ") && told[1].contains(" 1"), "{}", said.err);
        assert!(place.ok(&["dead", "ls", "--unacknowledged"]).contains("no such letter"));
    }
}

/// On a terminal: it asks, and shows how far it is.
#[tokio::test]
async fn a_person_is_asked() {
    let place = Place::direct();
    place.insert("charge", 1_200).await;
    let asked = |answer: &str| {
        let line = format!("{} task cancel --method charge", env!("CARGO_BIN_EXE_redrive"));
        let mut script = Command::new("script"); // gives it a terminal
        script.args(["-qec", &line, "/dev/null"]).current_dir(&place.dir).env_remove("REDRIVE_DATABASE");
        script.env_remove("REDRIVE_SERVER_URL").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().expect("script, of the package bsdutils");
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        Said::from(child.wait_with_output().unwrap())
    };
    let said = asked("n\n");
    assert!(said.out.contains("cancel 1,200 tasks? [y/N]") && said.out.contains("nothing was done"), "{}", said.out);
    assert_eq!((said.code, place.json(&["task", "ls", "--all"]).len()), (Some(1), 1_200));
    let said = asked("y\n");
    assert!(said.out.contains("cancel: 1,200 done"), "{}", said.out);
    assert_eq!((said.code, place.json(&["task", "ls", "--all"]).len()), (Some(0), 0));
}

#[tokio::test]
async fn methods_nodes_and_counts_are_seen() {
    for place in Place::both() {
        place.insert("charge", 2).await;
        assert!(place.ok(&["method", "pause", "charge"]).contains("charge: paused"));
        assert!(place.ok(&["method", "pause", "charge"]).contains("was paused already"));
        let listed = place.json(&["method", "ls"]);
        let charge = listed.iter().find(|method| method["method"] == "charge").unwrap();
        assert_eq!((&charge["tasks"]["n"], &charge["nodes"]), (&2.into(), &0.into()));
        assert!(charge["paused"]["since"].is_string());
        assert!(place.ok(&["method", "ls"]).contains("none: unhandled"));
        assert!(place.ok(&["method", "resume", "charge"]).contains("resumed"));
        let (shown, same) = (place.ok(&["overview"]), place.ok(&["status"]));
        assert!(shown.contains("waiting         2") && same.contains("waiting         2"), "{shown}");
        assert_eq!(place.json(&["overview"])[0]["pending"]["n"], 2);
        let nodes = place.json(&["node", "ls"]);
        assert_eq!(nodes.len(), usize::from(place.server.is_some()));
    }
}

#[tokio::test]
async fn settings_are_shown_set_and_taken_back() {
    for place in Place::both() {
        place.ok(&["settings", "set", "methods.\"billing.charge\".max_attempts", "7"]);
        place.ok(&["settings", "set", "defaults.timeout", "10s"]);
        place.ok(&["settings", "set", "defaults.backoff", "{\"fixed\": \"3s\"}"]);
        assert_eq!(place.ok(&["settings", "get", "methods.\"billing.charge\".max_attempts"]), "7\n");
        assert_eq!(place.json(&["settings", "get", "defaults"]).len(), 2);
        let timeout = &place.json(&["settings", "get", "defaults.timeout"])[0];
        assert_eq!((&timeout["value"], timeout["set"]["since"].is_string()), (&"10s".into(), true));
        assert!(place.ok(&["settings", "get"]).contains("engine.lease"));
        assert_eq!(place.ok(&["settings", "get", "retention.keep_archive"]), "90days\n");
        assert!(place.ok(&["guard", "check"]).contains("no table is guarded"));
        place.ok(&["settings", "unset", "defaults.timeout"]);
        place.fails(3, &["settings", "get", "defaults.timeout"]);
        let limit = "methods.charge.per_business";
        assert!(place.ok(&["settings", "set", limit, "1"]).contains("1; each node follows at its next start"));
        assert!(place.ok(&["settings", "set", limit, "2"]).contains("2; each node follows at its next start"));
        assert!(
            place.ok(&["settings", "set", "persist", "on_failure"]).contains("all nodes follow within a few seconds")
        );
        assert_eq!(place.json(&["settings", "unset", limit])[0]["waiting"][0], limit);
        assert!(place.fails(2, &["settings", "set", "engine.lease", "1m"]).contains("belong into the file"));
        place.fails(2, &["settings", "set", "defaults.max_attempts", "many"]);
    }
}

#[tokio::test]
async fn whoever_may_not_is_refused_and_the_audit_knows() {
    let place = Place::served();
    let id = &*place.insert("charge", 1).await.remove(0);
    let made = &place.json(&["token", "create", "eve", "--role", "viewer", "--expires", "90d"])[0];
    let secret = made["secret"].as_str().unwrap();
    let file = place.dir.join("token");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let as_eve = ["--token-file", file.to_str().unwrap()];
    let shown = place.ok(&[&["task", "show", id][..], &as_eve].concat());
    assert!(shown.contains("***") && !shown.contains("{\"order\""), "a viewer sees no params: {shown}");
    for refused in [
        &["task", "cancel", id][..],
        &["task", "cancel", "--method", "charge", "--yes"],
        &["task", "fail", "--all", "--dry-run"],
        &["dead", "ack", id, "1", "2"], // not asked again for each
        &["method", "pause", "charge"],
        &["settings", "set", "defaults.max_attempts", "1"],
        &["token", "ls"],
        &["audit", "ls"],
    ] {
        assert!(place.fails(4, &[refused, &as_eve].concat()).contains("the token is of a viewer"));
    }
    assert_eq!(place.json(&["audit", "ls", "--who", "eve", "--action", "api."]).len(), 8);
    assert!(place.ok(&["audit", "ls", "--who", "eve"]).contains("refused: "));
    let token = made["token"]["id"].as_str().unwrap();
    assert!(place.ok(&["token", "revoke", token]).contains("revoked"));
    place.fails(3, &["token", "revoke", token]);
    assert!(place.ok(&["token", "ls"]).contains("revoked"));
    let without = Said::from(place.command(&["task", "ls"]).env_remove("REDRIVE_TOKEN").output().unwrap());
    assert!(without.code == Some(4) && without.err.contains("REDRIVE_TOKEN"), "{}", without.err);
    place.fails(2, &["token", "create", "x", "--expires", "soon"]);
}

#[test]
fn a_server_or_a_database_that_cannot_be_reached_is_told_from_a_failure() {
    let place = Place::direct();
    let free = "127.0.0.1:1"; // nobody listens there
    let said = place.fails(5, &["task", "ls", "--server", &format!("http://{free}")]);
    assert!(said.contains("could not be reached"), "{said}");
    let said = place.fails(5, &["dead", "ack", "1", "2", "3", "--server", &format!("http://{free}")]);
    assert_eq!(said.matches("could not be reached").count(), 1, "{said}");
    assert!(said.starts_with("it ends at 1: "), "{said}");
    for (code, server) in [(5, format!("http://ada:hunter2@{free}")), (2, "ftp://ada:hunter2@h".into())] {
        let said = place.fails(code, &["task", "ls", "--server", &server]);
        assert!(!said.contains("hunter2"), "{said}");
    }
    place.fails(5, &["task", "ls", "--database", &format!("postgres://me@{free}/none")]);
    let dir = format!("sqlite://{}", place.dir.display());
    assert!(place.fails(5, &["status", "--database", &dir]).contains("is a directory"));
    assert!(place.fails(5, &["status", "--database", &format!("{dir}/no/x.db")]).contains("no, which it is to be in,"));
    place.fails(2, &["task", "ls", "--server", "redrive.example.org"]);
    place.fails(2, &["task", "ls", "--server", "http://x", "--database", "sqlite://x.db"]);
    place.fails(2, &["task", "ls", "--token-file", "token"]);
    place.fails(2, &["task", "ls", "--database", "oracle://x"]);
    place.fails(2, &["task", "ls", "--server", "http://x", "--by", "ada"]);
}

/// What is said on the command line wins over the environment.
#[tokio::test]
async fn a_database_that_is_named_is_used_though_there_is_a_server() {
    let place = Place::served();
    place.insert("charge", 1).await;
    let other = ["--database", "sqlite://other.db"];
    assert!(place.ok(&[&["task", "ls"][..], &other].concat()).contains("no such task"));
    place.ok(&[&["method", "pause", "charge", "--by", "ada"][..], &other].concat());
    assert!(place.ok(&[&["audit", "ls"][..], &other].concat()).contains("ada"));
    assert_eq!(place.json(&["task", "ls"]).len(), 1);
    let url = format!("{}/api/v1", place.server.as_ref().unwrap().url()); // as `serve` prints it
    assert_eq!(place.json(&["task", "ls", "--server", &url]).len(), 1);
}

/// The names that the audit has: of the token, or of who says so.
#[tokio::test]
async fn the_audit_says_who() {
    for place in Place::both() {
        let pause = place.command(&["method", "pause", "charge"]).env("USER", "ada").output().unwrap();
        assert!(pause.status.success());
        assert_eq!(place.json(&["audit", "ls", "--action", "method."])[0]["who"], place.me());
    }
    // Where no shell has set USER.
    let place = Place::direct();
    let mut pause = place.command(&["method", "pause", "charge"]);
    pause.env_remove("USER").env_remove("USERNAME").env("LOGNAME", "ada");
    assert!(pause.status().unwrap().success());
    assert_eq!(place.json(&["audit", "ls", "--action", "method."])[0]["who"], "ada");
}

#[test]
fn a_database_that_was_not_there_is_not_made_in_silence() {
    for args in [&["migrate"][..], &["status"]] {
        let place = Place::direct();
        assert!(place.run(args).err.contains("this is a new one"), "{args:?}");
        assert!(!place.run(args).err.contains("new one"), "{args:?}");
        assert!(!place.run(&[args, &["--database", "sqlite://named.db"]].concat()).err.contains("new one"), "{args:?}");
    }
}

/// A database that has work to do is not measured by mistake.
#[test]
fn it_is_measured_on_a_database_of_its_own() {
    let place = Place::direct();
    place.ok(&["bench", "enqueue", "--tasks", "64", "--runs", "1"]);
    assert!(place.dir.join("redrive-bench.db").exists() && !place.dir.join("redrive.db").exists());
    assert!(place.ok(&["bench", "--help"]).contains("sqlite://redrive-bench.db"));
}

#[test]
fn a_saga_that_is_not_there_is_told_from_a_failure() {
    let place = Place::served();
    assert!(place.fails(3, &["saga", "kill", "trip-7"]).contains("trip-7"));
    place.fails(3, &["saga", "retry", "trip-7", "--json"]);
    assert!(place.fails(3, &["saga", "retry", "trip-7", "trip-8"]).contains("2 of 2 are not there"));
    let saga = r#"{"name": "n", "steps": [{"name": "a", "kind": {"wait_for": {"signal": "s", "timeout": "1h"}}}]}"#;
    std::fs::write(place.dir.join("trip.json"), saga).unwrap();
    place.ok(&["saga", "start", "trip-9", "trip.json"]);
    place.fails(1, &["saga", "skip", "nothing", "trip-8", "trip-9"]);
    place.fails(3, &["saga", "cancel", "trip-8", "trip-9"]);
}

#[test]
fn an_address_that_is_taken_or_is_none_is_told_with_what_helps() {
    let place = Place::served();
    let taken = &place.server.as_ref().unwrap().address;
    let said = place.fails(1, &["serve", "--database", "sqlite::memory:", "--listen", taken]);
    let told = said.lines().filter(|line| line.starts_with("redrive: ")).collect::<Vec<_>>();
    assert!(told.len() == 1 && told[0].starts_with(&format!("redrive: listening on {taken}: ")), "{said}");
    assert!(told[0].ends_with("is a server running already? `--listen` takes another address"), "{said}");
    assert!(place.fails(2, &["serve", "--listen", "localhost:7171"]).contains("write it as 127.0.0.1:7171"));
}

/// Each by the name that the list has for it.
#[test]
fn gates_of_the_same_host_are_told_apart() {
    for place in Place::both() {
        let gates = ["http:pay.example:443", "saga.http:pay.example:443"];
        gates.iter().for_each(|gate| _ = place.ok(&["gate", "hold", gate, "open"]));
        let listed = place.ok(&["gate", "ls"]);
        gates.iter().for_each(|gate| assert!(listed.contains(&format!("| {gate} ")), "{listed}"));
        gates.iter().for_each(|gate| assert!(place.ok(&["gate", "release", gate]).starts_with(&format!("{gate}: "))));
        place.fails(2, &["gate", "reset", "pay.example:443"]);
    }
}

#[test]
fn tasks_are_enqueued_from_files_and_pipes() {
    let place = Place::served();
    let task = |n| format!("{{ \"method\": \"charge\", \"key\": \"k{n}\" }}\n");
    let file = place.dir.join("tasks.ndjson");
    std::fs::write(&file, (0..2_500).map(|n| task(n % 2_400)).collect::<String>()).unwrap();
    assert_eq!(place.ok(&["task", "enqueue", "tasks.ndjson"]), "2,400 written down, 100 there already\n");
    assert_eq!(place.json(&["task", "ls", "--all"]).len(), 2_400);
    let piped = |text: &str| {
        let mut child =
            place.command(&["task", "enqueue"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Said::from(child.wait_with_output().unwrap())
    };
    assert!(piped(&task(9_000)).out.contains("is written down"));
    assert!(piped(&task(9_000)).out.contains("was there already"));
    assert_eq!(piped("[]").code, Some(2));
    assert_eq!(piped("{\"method\": \"\"}").code, Some(2));
    let some = piped("{\"method\": \"charge\", \"key\": \"a\"} {\"method\": \"\"}");
    assert_eq!((some.code, &*some.out), (Some(2), "1 written down, 0 there already\n"));
    let direct = Place::direct();
    std::fs::write(direct.dir.join("one.json"), task(1)).unwrap();
    assert!(direct.fails(5, &["task", "enqueue", "one.json"]).contains("redrive serve"));
}

#[test]
fn what_was_tried_at_once_and_failed_for_good_is_a_failure() {
    let place = Place::served();
    let task = |key: &str| format!("{{ \"http\": {{ \"url\": \"http://localhost:1/\" }}, \"wait\": true{key} }}");
    std::fs::write(place.dir.join("refused.json"), task("")).unwrap();
    let said = place.run(&["task", "enqueue", "refused.json"]);
    assert_eq!((said.code, &*said.err), (Some(1), "redrive: it was not delivered: rejected\n"), "{}", said.out);
    assert!(said.out.starts_with("rejected: "), "{}", said.out);
    std::fs::write(place.dir.join("keyed.json"), task(", \"key\": \"k\"")).unwrap();
    let said = place.run(&["task", "enqueue", "keyed.json", "--json"]);
    let answer: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &answer["state"]), (Some(1), &"rejected".into()), "{answer}");
}

/// A server that takes two requests of many tasks, and no more.
async fn tired() -> String {
    let asked = Arc::new(AtomicUsize::new(0));
    let take = move |body: String| {
        let n = asked.fetch_add(1, Ordering::Relaxed);
        let taken: String = body.lines().map(|_| "{ \"id\": \"7\", \"existed\": false }\n").collect();
        let tired = "{ \"status\": 503, \"detail\": \"it is tired\" }".to_owned();
        let (status, said) = if n < 2 { (StatusCode::OK, taken) } else { (StatusCode::SERVICE_UNAVAILABLE, tired) };
        async move { (status, [("redrive-version", "0")], said) }
    };
    answering(axum::Router::new().route("/api/v1/tasks/bulk", post(take))).await
}

/// Where this is answered from now on.
async fn answering(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_server_answers_is_not_taken_for_success() {
    let place = Place::direct();
    let other = answering(axum::Router::new().fallback(|| async { "{}" })).await;
    for args in [
        &["task", "retry", "123"][..],
        &["task", "cancel", "--all", "--yes"],
        &["task", "ls"],
        &["method", "pause", "charge"],
        &["token", "revoke", "7"],
    ] {
        let said = place.run(&[args, &["--server", &other]].concat());
        assert_eq!((said.code, &*said.out), (Some(5), ""), "{args:?}");
        assert!(said.err.contains("200 OK was answered, by something that is no redrive server"), "{}", said.err);
    }
    let refuses = || async { (StatusCode::NOT_FOUND, "{ \"detail\": \"Not Found\" }") };
    let other = answering(axum::Router::new().fallback(refuses)).await;
    assert!(place.fails(5, &["task", "show", "123", "--server", &other]).contains("no redrive server"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_down_is_said_though_the_rest_could_not_be_sent() {
    let (place, server) = (Place::direct(), tired().await);
    std::fs::write(place.dir.join("tasks.ndjson"), "{ \"method\": \"charge\" }\n".repeat(2_500)).unwrap();
    let said = place.run(&["task", "enqueue", "tasks.ndjson", "--server", &server]);
    assert_eq!((said.code, &*said.out), (Some(5), "2,000 written down, 0 there already\n"), "{}", said.err);
    assert!(said.err.contains("it is tired"), "{}", said.err);
}

/// `redrive task ls | head`
#[tokio::test]
async fn whoever_has_read_enough_may_close_the_pipe() {
    for place in Place::both() {
        place.insert("charge", 1_200).await;
        for args in [
            &["task", "ls", "--all", "--json"][..],
            &["task", "ls", "--all"],
            &["completions", "zsh"],
            &["migrate"],
            &["bench", "enqueue", "--tasks", "64", "--runs", "1", "--database", "sqlite://bench.db"],
        ] {
            let mut command = place.command(args);
            command.stdout(closed()).stderr(Stdio::piped()).env("RUST_LOG", "warn");
            let said = Said::from(command.output().unwrap());
            assert_eq!((said.code, &*said.err), (Some(0), ""), "{args:?}");
        }
        for (args, code) in [(&["migrate"][..], 0), (&["task", "show", "7"], 3)] {
            let mut command = place.command(args);
            command.stdout(Stdio::null()).stderr(closed()).env("RUST_LOG", "trace");
            assert_eq!(command.status().unwrap().code(), Some(code), "{args:?}");
        }
    }
}

/// `redrive task cancel --all --json | head`
#[tokio::test]
async fn what_is_being_done_goes_on_if_nobody_listens_any_more() {
    for place in Place::both() {
        place.insert("charge", 1_200).await;
        let unheard = |args: &[&str]| place.command(args).stdout(closed()).status().unwrap().code();
        assert_eq!(unheard(&["task", "cancel", "--method", "charge", "--yes", "--json", "--rate", "1000"]), Some(0));
        assert_eq!(place.json(&["task", "ls", "--all"]).len(), 0);
    }
    let place = Place::served();
    let unheard = |args: &[&str]| place.command(args).stdout(closed()).status().unwrap().code();
    let tasks: String = (0..1_500).map(|n| format!("{{ \"method\": \"charge\", \"params\": {n} }}\n")).collect();
    std::fs::write(place.dir.join("tasks.ndjson"), tasks + "{ \"method\": \"\" }\n").unwrap();
    assert_eq!(unheard(&["task", "enqueue", "tasks.ndjson", "--json"]), Some(2), "one of them is refused");
    assert_eq!(place.json(&["task", "ls", "--all"]).len(), 1_500);
    assert_eq!(unheard(&["task", "enqueue", "tasks.ndjson"]), Some(2), "one of them is refused");
}

/// A pipe that nobody reads.
fn closed() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn it_says_which_version_it_is_and_how_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let said = String::from_utf8(command(dir.path(), &["--version"]).output().unwrap().stdout).unwrap();
    let made = if cfg!(debug_assertions) { "debug" } else { "release" };
    assert!(said.starts_with(concat!("redrive ", env!("CARGO_PKG_VERSION"), " (")) && said.contains(made), "{said}");
}

#[test]
fn shells_complete_it() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Place::direct().ok(&["completions", shell]);
        assert!(script.contains("take-over") && script.contains("redrive"), "{shell}");
    }
}

#[test]
fn the_exit_codes_are_in_the_help_and_in_the_docs() {
    let help = Place::direct().ok(&["--help"]);
    let docs = include_str!("../../docs/operate/cli.md");
    let codes = help.split_once("Exit codes:").unwrap().1.lines().filter_map(|line| line.trim().split_once("  "));
    let rows: Vec<String> = codes.map(|(code, meaning)| format!("| {code} | {meaning} |")).collect();
    assert_eq!(rows.len(), 7);
    rows.iter().for_each(|row| assert!(docs.contains(row), "{row}"));
}

fn set(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, or `eval \"$(scripts/db env)\"` first"))
}

/// To the mail server of `scripts/db`, with TLS and a login.
#[test]
fn a_test_message_goes_through_each_channel() {
    let place = Place::direct();
    assert!(place.fails(2, &["notify", "test"]).contains("no channel"));
    let (address, ca) = (set("REDRIVE_TEST_SMTP_STARTTLS"), set("REDRIVE_TEST_SMTP_CA"));
    let (host, port) = address.split_once(':').unwrap();
    let to = format!("cli-{}@example.org", std::process::id());
    let mail = |name: &str, password: &str| {
        format!(
            "[notify.channels.{name}]\ntype = 'mail'\nhost = '{host}'\nport = {port}\nencryption = 'starttls'\nuser = 'redrive'\n\
             password = '{password}'\nfrom = 'redrive@example.org'\nto = ['{to}']\nca_file = '{ca}'\n"
        )
    };
    std::fs::write(place.dir.join("redrive.toml"), mail("ops", "sink") + &mail("broken", "hunter2")).unwrap();
    let received = || {
        let mails = std::fs::read_dir(set("REDRIVE_TEST_MAILS")).unwrap().map(|file| file.unwrap().path());
        mails.filter(|file| std::fs::read_to_string(file).is_ok_and(|mail| mail.contains(&to))).count()
    };
    assert_eq!(place.ok(&["notify", "test", "ops"]), "ops: taken\n");
    assert_eq!(received(), 1);
    let said = place.run(&["notify", "test"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("ops: taken\n") && said.out.contains("broken: failed: "), "{}", said.out);
    assert!(!said.out.contains("hunter2"), "no password is shown: {}", said.out);
    assert_eq!(received(), 2);
    place.fails(3, &["notify", "test", "nobody"]);
}
