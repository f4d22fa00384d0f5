//! A handler of a guard says where people close rows, even if that is nowhere.

use redrive::guard::{BoxError, ErrColumns, GuardHandler};

struct Bills;

impl GuardHandler for Bills {
    type Id = i64;

    async fn check_status(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }

    async fn handle(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }
}

#[derive(ErrColumns)]
struct UserBill {
    id: i64,
}

fn main() {}
