"""The console: pages over the views of a store, as JSON for a page in Airflow's UI. It reads and never writes."""
