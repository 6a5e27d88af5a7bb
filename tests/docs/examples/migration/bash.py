from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("churn", schedule="@daily", catchup=False):
    fetch = BashOperator(task_id="fetch", bash_command="hdfs dfs -get -f /churn/train /data/churn")
    train = BashOperator(
        task_id="train",
        bash_command="CUDA_VISIBLE_DEVICES=0 python /opt/churn/train.py --epochs=10 --data=/data/churn --out=/data/model",
        pool="gpu",
        retries=2,
    )
    publish = BashOperator(task_id="publish", bash_command="hdfs dfs -put -f /data/model /models/churn/{{ ts_nodash }}")
    fetch >> train >> publish
