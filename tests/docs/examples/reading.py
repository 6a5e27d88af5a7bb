from airflow_tf import runtime

folder = runtime.context().inputs["train"]
rows = runtime.csv_dataset(folder, ["int32", "float32", "string"], header=True, batch_rows=1024)
