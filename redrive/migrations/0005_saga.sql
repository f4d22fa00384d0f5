-- Sagas that must be looked at when a time has come, and the newest first. See store/saga.rs.
--
-- redrive_saga.deadline is that time: of a wait, of a reservation, of the saga itself. redrive_saga.driver_id says which write was the
-- last; a driver there is none.
{index:redrive_saga_deadline ON redrive_saga (deadline)};
{index:redrive_saga_created ON redrive_saga (created_at)};

-- Each event of a saga changes its row: with room on the page no index is touched.
{roomy:redrive_saga};
