//! A guard over a table of bills: one is put right by a retry, the other by a person.
//!
//! ```sh
//! cargo run --example guard_bill
//! ```
//!
//! Time is moved by hand here, so that it takes no time; without `clock` and `by_hand` guards poll by themselves.

use std::time::Duration;

use redrive::guard::{BoxError, BusinessDatabase, Guard, GuardHandler, GuardedTable, Guards};
use redrive::store::Connection;
use redrive::{Clock, Store};

/// What can be done about a bill: here the bank is asked, and paid again.
struct UserBills {
    bank: Bank,
}

impl GuardHandler for UserBills {
    type Id = i64;

    async fn check_status(&self, id: &i64) -> Result<bool, BoxError> {
        Ok(self.bank.is_paid(*id))
    }

    async fn handle(&self, id: &i64) -> Result<bool, BoxError> {
        println!("  paying bill {id} again");
        Ok(self.bank.pay(*id))
    }

    fn manual_success_route(&self) -> String {
        "/api/admin/test/payment/manual-success".into()
    }
}

/// Takes bill 7 when it is asked again; never bill 8.
#[derive(Default)]
struct Bank(std::sync::Mutex<Vec<i64>>);

impl Bank {
    fn pay(&self, id: i64) -> bool {
        if id == 7 {
            self.0.lock().expect("nobody panics here").push(id);
        }
        self.is_paid(id)
    }

    fn is_paid(&self, id: i64) -> bool {
        self.0.lock().expect("nobody panics here").contains(&id)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = Store::open("sqlite::memory:").await?;
    create_bills(&store).await?;
    let guard = Guard::table("user_bill")
        .service_name("异常处理示例")
        .user_field("user_id")
        .status_field("status")
        .success_value("SUCCESS")
        .fail_value("FAIL")
        .min_interval(Duration::from_secs(5))
        .timeout(Duration::from_secs(180))
        .max_retry_count(2)
        .manual_remind_interval(Duration::from_secs(10));
    let clock = Clock::manual(store.now().await?);
    let guards = Guards::builder(store.clone())
        .guard(guard, BusinessDatabase::of(&store), UserBills { bank: Bank::default() })
        .clock(clock.clone())
        .by_hand()
        .start()
        .await?;
    let bills = guards.get("异常处理示例").ok_or_else(|| anyhow::anyhow!("it was registered"))?;

    // The payment of two bills has failed, and their rows say so.
    for id in [7, 8] {
        println!("bill {id}: {}", bills.mark_abnormal(id).await?);
    }
    if let Err(blocked) = bills.check_user_err("1000").await {
        println!("no new bill for now: {blocked}");
    }
    for seconds in [0, 5] {
        clock.advance(Duration::from_secs(seconds));
        println!("a poll, {seconds} s later");
        guards.poll_once().await;
        show(&bills).await?;
    }
    bills.manual_success(8, "alice").await?;
    println!("alice has paid bill 8 by hand");
    show(&bills).await?;
    bills.check_user_err("1000").await?;
    println!("user 1000 may go on");
    Ok(())
}

async fn show(bills: &GuardedTable) -> anyhow::Result<()> {
    for id in [7, 8] {
        let row = bills.show(id).await?.columns;
        println!(
            "  bill {id}: {}, err_status {}, retries {}",
            row["status"], row["err_status"], row["err_retry_count"]
        );
    }
    Ok(())
}

/// The application's own table, as it was before there was a guard.
async fn create_bills(store: &Store) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    if let Connection::Sqlite(c) = tx.connection() {
        let sql = "CREATE TABLE user_bill (id INTEGER PRIMARY KEY, user_id INTEGER, amount INTEGER, status TEXT);
                   INSERT INTO user_bill VALUES (7, 1000, 4200, 'FAIL'), (8, 1000, 1800, 'FAIL')";
        sqlx::raw_sql(sql).execute(&mut *c).await?;
    }
    tx.commit().await?;
    Ok(())
}
