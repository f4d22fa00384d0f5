//! What can be wrong with a file.

mod sqlite {
    use std::process::Command;

    use redrive::{NewTask, Store, Timestamp};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn url(path: &std::path::Path) -> String {
        format!("sqlite://{}", path.display())
    }

    #[tokio::test]
    async fn a_file_that_is_not_sqlite_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("letter.txt");
        let text = "Dear reader, this is not a database.\n".repeat(100);
        std::fs::write(&path, &text).unwrap();
        let said = Store::open(&url(&path)).await.unwrap_err().to_string();
        assert!(said.contains("letter.txt") && said.contains("not a database"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_a_database_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let wrong =
            [(dir.path().to_owned(), "name a file in it"), (dir.path().join("no/x.db"), "there is no directory")];
        for (path, why) in wrong {
            let said = Store::open(&url(&path)).await.unwrap_err().to_string();
            assert!(said.contains(why) && said.contains(&*path.to_string_lossy()), "{said}");
        }
    }

    #[tokio::test]
    async fn memory_is_a_database_too() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let id = store.insert(vec![NewTask::new("m", &1).unwrap()], NOW).await.unwrap()[0].id;
        assert!(store.get(id).await.unwrap().is_some());
    }

    /// A web client hangs up: its handler is dropped wherever it is. In memory there is no second connection to go on with.
    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_the_database_usable() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let kept = store.insert(vec![NewTask::new("m", &0).unwrap()], NOW).await.unwrap()[0].id;
        for polls in 0..200u32 {
            let tasks = (0..5).map(|n| NewTask::new("m", &(polls, n)).unwrap()).collect();
            let impatient = async {
                for _ in 0..polls / 4 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! { biased; _ = store.insert(tasks, NOW) => {}, () = impatient => {} }
            assert!(store.get(kept).await.unwrap().is_some());
        }
        let left = store.list(&Default::default(), 10_000).await.unwrap().len();
        assert_eq!(left % 5, 1, "each batch whole or not at all");
    }

    /// A disk that fills up: a child process may write files of 2 MiB at the most. It inserts until that fails, says how
    /// many were acknowledged, and all of those, and none else, are there afterwards.
    #[tokio::test]
    async fn a_full_disk_loses_nothing_that_was_acknowledged() {
        if let Ok(url) = std::env::var("REDRIVE_TEST_FULL_DISK") {
            return fill(&url).await;
        }
        let dir = tempfile::tempdir().unwrap();
        let url = url(&dir.path().join("full.db"));
        drop(Store::open(&url).await.unwrap());
        // A limit of 2 MiB a file, without the signal that would end the process.
        let script = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" --exact --nocapture sqlite::a_full_disk_loses_nothing_that_was_acknowledged";
        let me = std::env::current_exe().unwrap();
        let child =
            Command::new("bash").args(["-c", script]).arg(me).env("REDRIVE_TEST_FULL_DISK", &url).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let line = said.lines().find_map(|l| l.strip_prefix("acknowledged ")).unwrap_or_else(|| panic!("{said}"));
        let (acknowledged, why) = line.split_once(' ').unwrap();
        assert!(why.contains("enqueueing task") && (why.contains("disk") || why.contains("full")), "{why}");
        let acknowledged: usize = acknowledged.parse().unwrap();
        assert!(acknowledged > 0);
        let store = Store::open(&url).await.unwrap();
        assert_eq!(store.list(&Default::default(), 1_000_000).await.unwrap().len(), acknowledged);
        store.insert(vec![NewTask::new("m", &"there is room again").unwrap()], NOW).await.unwrap();
    }

    async fn fill(url: &str) {
        let store = Store::open(url).await.unwrap();
        for n in 0.. {
            let task = NewTask::new("m", &(n, "x".repeat(10_000))).unwrap();
            if let Err(e) = store.insert(vec![task], NOW).await {
                println!("\nacknowledged {n} {e}");
                return;
            }
        }
    }
}
