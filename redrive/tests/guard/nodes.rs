//! Three processes on one table, with handlers that succeed, fail, hang, and kill their process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use redrive::guard::RowId;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::bills::{Shop, guard};
use crate::harness::{Db, Kind, stores};

stores!(three_nodes_that_die_handle_each_row_by_one_at_a_time);

/// A program of `examples`, beside this test's own.
pub fn program(name: &str) -> PathBuf {
    let mine = std::env::current_exe().unwrap();
    let program = mine.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(program.exists(), "build it with `cargo build --example {name}`");
    program
}

/// How many rows; for a long run by hand set it to 10000.
fn rows() -> u32 {
    std::env::var("REDRIVE_GUARD_ROWS").map_or(1500, |rows| rows.parse().unwrap())
}

/// What is said of a process.
enum Said {
    Line,
    /// It is gone since this time.
    Ended {
        pid: u32,
        at: u128,
    },
}

fn start(shop: &Shop, directory: &Path, said: &mpsc::UnboundedSender<Said>) {
    let mut child = Command::new(program("guard_node"))
        .args([&shop.db.url, &shop.url])
        .arg(directory)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (pid, said) = (child.id().unwrap(), said.clone());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            assert!(line.contains("error: None"), "{line}");
            if said.send(Said::Line).is_err() {
                return; // the test is over, and the child is killed
            }
        }
        child.wait().await.unwrap();
        _ = said.send(Said::Ended { pid, at: micros() });
    });
}

#[expect(clippy::disallowed_methods, reason = "compared with what other processes wrote")]
fn micros() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros()
}

async fn three_nodes_that_die_handle_each_row_by_one_at_a_time(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, table) = shop.start(guard().create_index(true)).await;
    let rows = rows();
    shop.fill(rows, "4000", rows).await;
    let now = if shop.kind == Kind::Sqlite { "datetime('now', 'localtime')" } else { "CURRENT_TIMESTAMP" };
    shop.sql(&format!("UPDATE user_bill SET err_start_time = {now}")).await;
    let directory = tempfile::tempdir().unwrap();
    let (sender, mut said) = mpsc::unbounded_channel();
    (0..3).for_each(|_| start(&shop, directory.path(), &sender));
    let mut deaths = HashMap::new();
    while shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_status = 4000").await != Some(0) {
        match said.recv().await.unwrap() {
            Said::Line => {}
            Said::Ended { pid, at } => {
                deaths.insert(pid, at);
                start(&shop, directory.path(), &sender);
            }
        }
    }
    drop(said);
    let crashes = (1..=rows).filter(|id| id % 1000 == 500).count();
    assert!(deaths.len() >= crashes.min(1), "{} died", deaths.len());
    check_ledger(directory.path(), &deaths);
    // A person closes some of those that nobody could put right.
    for id in (1..=i64::from(rows)).filter(|id| id % 20 == 18) {
        assert_eq!(table.manual_success(id, "eve").await.unwrap(), RowId::Int(id));
    }
    check_ends(&shop, rows).await;
}

/// Each row as its id says: 500, 1500 … crash once and then succeed.
async fn check_ends(shop: &Shop, rows: u32) {
    let text = if shop.kind == Kind::MySql { "CHAR" } else { "TEXT" };
    let sql = format!(
        "SELECT CAST(id AS {text}), CAST(err_status AS {text}), status, CAST(err_retry_count AS {text}) FROM user_bill"
    );
    let found = shop.texts(&sql).await;
    assert_eq!(found.len(), rows as usize);
    for row in found {
        let id: u32 = row[0].as_deref().unwrap().parse().unwrap();
        let (err_status, status) = match id % 20 {
            _ if id % 1000 == 500 => ("2001", "SUCCESS"),
            0..=12 => ("2001", "SUCCESS"),
            18 => ("2002", "SUCCESS"),
            _ => ("4001", "FAIL"),
        };
        assert_eq!((row[1].as_deref(), row[2].as_deref()), (Some(err_status), Some(status)), "row {id}");
        let retries = if err_status == "2001" { None } else { Some("2") };
        assert!(retries.is_none() || row[3].as_deref() == retries, "row {id} has {:?} retries", row[3]);
    }
}

/// No row was handled by two processes, or twice by one, at the same time. A process that was killed handled nothing after
/// we saw it gone.
fn check_ledger(directory: &Path, deaths: &HashMap<u32, u128>) {
    let mut handled: HashMap<i64, Vec<(u128, u128)>> = HashMap::new();
    for file in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let Some(pid) = file.to_str().and_then(|name| name.strip_suffix(".ledger")) else { continue };
        let pid: u32 = pid.rsplit_once('/').unwrap().1.parse().unwrap();
        let mut open = HashMap::new();
        let ledger = std::fs::read_to_string(&file).unwrap();
        for line in ledger.lines() {
            let [what, id, at] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            let (id, at): (i64, u128) = (id.parse().unwrap(), at.parse().unwrap());
            match what {
                "B" => assert_eq!(open.insert(id, at), None, "{pid} handles {id} twice at once"),
                _ => handled.entry(id).or_default().push((open.remove(&id).unwrap(), at)),
            }
        }
        for (id, began) in open {
            handled.entry(id).or_default().push((began, deaths.get(&pid).copied().unwrap_or_else(micros)));
        }
    }
    for (id, mut spans) in handled {
        spans.sort_unstable();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "row {id} was handled twice at once: {spans:?}");
        }
    }
}
