//! Every state and event, one by one.
