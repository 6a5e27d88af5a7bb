from pyspark import SparkContext
from tensorflowonspark import TFCluster


def main_fun(args, ctx):
    import train

    train.main(args.epochs, data=ctx.absolute_path(args.data), model=ctx.absolute_path(args.model))


context = SparkContext()
cluster = TFCluster.run(
    context,
    main_fun,
    args,  # noqa: F821 - parsed above
    num_executors=4,
    num_ps=0,
    input_mode=TFCluster.InputMode.TENSORFLOW,
    master_node="chief",
)
cluster.shutdown()
